//! Which pages are in use, and which may be written.
//!
//! Kept true: a page is written only if neither of the two newest checkpoints
//! on disk, nor a pinned one, refers to it. `used` is what the state as it is
//! now refers to and is what a checkpoint stores; `taken` has besides the
//! pages that were given up but are still part of an older checkpoint.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::format::{MAP_PAGES, META_PAGES};

const WORDS: usize = MAP_PAGES as usize / 64;
/// One bit for each of [`MAP_PAGES`] pages.
pub(crate) type Chunk = [u64; WORDS];

/// Words of the map that one search for a gap looks at.
const RUN_SEARCH_WORDS: usize = 1024;

/// A run of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) page: u64,
    pub(crate) pages: u64,
}

/// The pages of a file.
pub(crate) struct Space {
    used: Vec<Arc<Chunk>>,
    taken: Vec<Chunk>,
    /// Pages below `end` that are not taken, by chunk.
    available: Vec<u32>,
    /// First page after all that were ever taken.
    end: u64,
    /// Where the search for a page goes on.
    cursor: u64,
    /// Where the search for several pages side by side goes on.
    run_cursor: u64,
    /// Pages given up, by the generation that did it.
    freed: VecDeque<(u64, Vec<Run>)>,
    /// How many they are.
    freed_pages: u64,
    /// Checkpoints that someone reads, with how many do.
    pinned: BTreeMap<u64, usize>,
    /// Where the map of the last checkpoint lies, by chunk; 0 for nowhere.
    map: Vec<u64>,
    index: Option<Run>,
    /// Chunks whose map page is out of date.
    changed: Vec<bool>,
}

/// The map as one checkpoint stores it.
pub(crate) struct FrozenMap {
    /// Pages of the map that changed, with where to write them.
    pub(crate) chunks: Vec<(u64, Arc<Chunk>)>,
    /// Where every page of the map lies.
    pub(crate) places: Vec<u64>,
    /// Where to write `places`.
    pub(crate) index: Run,
}

impl Space {
    /// The space of a new file.
    pub(crate) fn new() -> Self {
        let mut space = Self {
            used: Vec::new(),
            taken: Vec::new(),
            available: Vec::new(),
            end: 0,
            cursor: META_PAGES,
            run_cursor: META_PAGES,
            freed: VecDeque::new(),
            freed_pages: 0,
            pinned: BTreeMap::new(),
            map: Vec::new(),
            index: None,
            changed: Vec::new(),
        };
        space.extend(META_PAGES);
        space
    }

    /// The space of a file whose newest checkpoint, of `generation`, uses
    /// `used`, while the one before it uses `before`.
    pub(crate) fn of_checkpoint(
        generation: u64,
        end: u64,
        used: Vec<Arc<Chunk>>,
        before: &[Arc<Chunk>],
        map: Vec<u64>,
        index: Run,
    ) -> Self {
        let mut taken: Vec<Chunk> = used.iter().map(|chunk| **chunk).collect();
        let mut kept = Vec::new();
        for (c, chunk) in before.iter().enumerate().take(taken.len()) {
            for (w, word) in chunk.iter().enumerate() {
                let mut only_before = word & !taken[c][w];
                taken[c][w] |= word;
                while only_before != 0 {
                    let page = c as u64 * MAP_PAGES + w as u64 * 64;
                    let page = page + u64::from(only_before.trailing_zeros());
                    kept.push(Run { page, pages: 1 });
                    only_before &= only_before - 1;
                }
            }
        }
        let available = taken
            .iter()
            .enumerate()
            .map(|(c, chunk)| {
                let below = end.saturating_sub(c as u64 * MAP_PAGES).min(MAP_PAGES);
                let taken: u32 = chunk.iter().map(|word| word.count_ones()).sum();
                (below as u32).saturating_sub(taken)
            })
            .collect();
        Self {
            changed: vec![false; used.len()],
            used,
            taken,
            available,
            end,
            cursor: META_PAGES,
            run_cursor: META_PAGES,
            freed_pages: kept.len() as u64,
            freed: VecDeque::from([(generation, kept)]),
            pinned: BTreeMap::new(),
            map,
            index: Some(index),
        }
    }

    /// First page after all that were ever taken.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Pages below the end that could be taken now.
    pub(crate) fn available(&self) -> u64 {
        self.available.iter().map(|&pages| u64::from(pages)).sum()
    }

    /// Pages that the newest state needs; what only earlier checkpoints have is
    /// not among them.
    pub(crate) fn needed(&self) -> u64 {
        self.end - self.available() - self.freed_pages
    }

    pub(crate) fn is_used(&self, page: u64) -> bool {
        is_marked(&self.used, page)
    }

    /// Whether `page` can't be written, because some checkpoint may need it.
    pub(crate) fn is_taken(&self, page: u64) -> bool {
        let (c, w, bit) = place(page);
        self.taken.get(c).is_some_and(|chunk| chunk[w] & bit != 0)
    }

    /// Takes pages that lie side by side.
    pub(crate) fn take(&mut self, pages: u64) -> u64 {
        let found = match pages {
            1 => self.find_one(),
            _ => self.find_run(pages),
        };
        let Some(page) = found else {
            return self.extend(pages);
        };
        for page in page..page + pages {
            let (c, w, bit) = place(page);
            debug_assert!(self.taken[c][w] & bit == 0, "page {page} is taken twice");
            self.taken[c][w] |= bit;
            self.available[c] -= 1;
            self.mark_used(c, w, bit);
        }
        if pages == 1 {
            self.cursor = page + 1;
        }
        page
    }

    fn find_one(&self) -> Option<u64> {
        let chunks = self.taken.len();
        let (start, first_word, _) = place(self.cursor);
        // Round once, and the first chunk's beginning at the end.
        for step in 0..=chunks {
            let c = (start + step) % chunks;
            if self.available[c] == 0 {
                continue;
            }
            let from = if step == 0 && start < chunks {
                first_word
            } else {
                0
            };
            for w in from..WORDS {
                let mut free = !self.taken[c][w];
                if step == 0 && w == first_word && start < chunks {
                    free &= u64::MAX << (self.cursor % MAP_PAGES % 64);
                }
                if free != 0 {
                    let page =
                        c as u64 * MAP_PAGES + w as u64 * 64 + u64::from(free.trailing_zeros());
                    if page < self.end {
                        return Some(page);
                    }
                    break;
                }
            }
        }
        None
    }

    /// A gap of `pages` pages inside one chunk. Gaps may be rare and the file
    /// long, so the search goes on where the last one ended and gives up soon.
    fn find_run(&mut self, pages: u64) -> Option<u64> {
        let chunks = self.taken.len();
        let mut words_left = RUN_SEARCH_WORDS;
        let (mut c, mut w, _) = place(self.run_cursor);
        for _ in 0..=chunks {
            if c >= chunks {
                (c, w) = (0, 0);
            }
            let base = c as u64 * MAP_PAGES;
            let below = self.end.saturating_sub(base).min(MAP_PAGES);
            // Where the gap that reaches up to the current page begins.
            let mut start = w as u64 * 64;
            while u64::from(self.available[c]) >= pages && (w as u64) * 64 < below && words_left > 0
            {
                words_left -= 1;
                let first = w as u64 * 64;
                let mut word = self.taken[c][w];
                loop {
                    let next_taken = first + u64::from(word.trailing_zeros());
                    if next_taken.min(below) >= start + pages {
                        self.run_cursor = base + start + pages;
                        return Some(base + start);
                    }
                    if word == 0 {
                        break;
                    }
                    start = next_taken + 1;
                    word &= word - 1;
                }
                w += 1;
            }
            if words_left == 0 {
                self.run_cursor = base + w as u64 * 64;
                return None;
            }
            (c, w) = (c + 1, 0);
        }
        None
    }

    /// Takes pages at the end.
    fn extend(&mut self, pages: u64) -> u64 {
        let page = self.end;
        self.end += pages;
        while (self.used.len() as u64) * MAP_PAGES < self.end {
            self.used.push(Arc::new([0; WORDS]));
            self.taken.push([0; WORDS]);
            self.available.push(0);
            self.map.push(0);
            self.changed.push(true);
        }
        for page in page..self.end {
            let (c, w, bit) = place(page);
            self.taken[c][w] |= bit;
            self.mark_used(c, w, bit);
        }
        page
    }

    fn mark_used(&mut self, c: usize, w: usize, bit: u64) {
        Arc::make_mut(&mut self.used[c])[w] |= bit;
        self.changed[c] = true;
    }

    /// Gives up pages that `generation` doesn't need any more. If no
    /// checkpoint ever had them, they can be taken again at once.
    pub(crate) fn give_up(&mut self, run: Run, generation: u64, unwritten: bool) {
        for page in run.page..run.page + run.pages {
            let (c, w, bit) = place(page);
            assert!(self.used[c][w] & bit != 0, "page {page} is given up twice");
            Arc::make_mut(&mut self.used[c])[w] &= !bit;
            self.changed[c] = true;
        }
        if unwritten {
            self.release(run);
        } else {
            self.freed_pages += run.pages;
            match self.freed.back_mut() {
                Some((last, runs)) if *last == generation => runs.push(run),
                _ => self.freed.push_back((generation, vec![run])),
            }
        }
    }

    fn release(&mut self, run: Run) {
        for page in run.page..run.page + run.pages {
            let (c, w, bit) = place(page);
            self.taken[c][w] &= !bit;
            self.available[c] += 1;
        }
    }

    /// Makes pages available that the two newest checkpoints, of which
    /// `durable` is the last, and the pinned ones don't need.
    pub(crate) fn reclaim(&mut self, durable: u64) {
        let pinned = self.pinned.keys().next().copied().unwrap_or(u64::MAX);
        while let Some(&(generation, _)) = self.freed.front() {
            if generation >= durable || generation > pinned {
                break;
            }
            let (_, runs) = self.freed.pop_front().expect("looked at above");
            for run in runs {
                self.freed_pages -= run.pages;
                self.release(run);
            }
        }
    }

    /// Keeps the pages of the checkpoint of `generation`.
    pub(crate) fn pin(&mut self, generation: u64) {
        *self.pinned.entry(generation).or_default() += 1;
    }

    /// Ends one [`Space::pin`].
    pub(crate) fn unpin(&mut self, generation: u64) {
        if let Some(count) = self.pinned.get_mut(&generation) {
            *count -= 1;
            if *count == 0 {
                self.pinned.remove(&generation);
            }
        }
    }

    /// Gives pages at the end of the file back, if they are not taken.
    pub(crate) fn cut_end(&mut self) -> u64 {
        while self.end > META_PAGES {
            let (c, w, bit) = place(self.end - 1);
            if self.taken[c][w] & bit != 0 {
                break;
            }
            self.end -= 1;
            self.available[c] -= 1;
        }
        self.end
    }

    /// Finds places for all that changed of the map since the last
    /// checkpoint. That changes the map again, until it doesn't.
    pub(crate) fn freeze(&mut self, generation: u64) -> FrozenMap {
        let mut written = vec![false; self.used.len()];
        let mut index: Option<Run> = None;
        loop {
            let mut settled = true;
            for c in 0..self.used.len() {
                if self.changed[c] && !written[c] {
                    if self.map[c] != 0 {
                        self.give_up(
                            Run {
                                page: self.map[c],
                                pages: 1,
                            },
                            generation,
                            false,
                        );
                    }
                    self.map[c] = self.take(1);
                    written.resize(self.used.len(), false);
                    written[c] = true;
                    settled = false;
                }
            }
            let pages = crate::format::run_pages(8 * self.used.len());
            if index.is_none_or(|index| index.pages < pages) {
                let old = index
                    .map(|run| (run, true))
                    .or(self.index.take().map(|run| (run, false)));
                if let Some((run, unwritten)) = old {
                    self.give_up(run, generation, unwritten);
                }
                index = Some(Run {
                    page: self.take(pages),
                    pages,
                });
                written.resize(self.used.len(), false);
                settled = false;
            }
            if settled {
                break;
            }
        }
        // The file fills up from the front, so that its end can be cut off.
        self.cursor = META_PAGES;
        self.run_cursor = META_PAGES;
        let index = index.expect("the loop ends when there is one");
        self.index = Some(index);
        self.changed.fill(false);
        FrozenMap {
            chunks: (0..self.used.len())
                .filter(|&c| written[c])
                .map(|c| (self.map[c], Arc::clone(&self.used[c])))
                .collect(),
            places: self.map.clone(),
            index,
        }
    }
}

/// Whether a page's bit is set.
pub(crate) fn is_marked(map: &[Arc<Chunk>], page: u64) -> bool {
    let (c, w, bit) = place(page);
    map.get(c).is_some_and(|chunk| chunk[w] & bit != 0)
}

fn place(page: u64) -> (usize, usize, u64) {
    let chunk = page / MAP_PAGES;
    let rest = page % MAP_PAGES;
    (chunk as usize, rest as usize / 64, 1 << (rest % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_taken_again_two_checkpoints_after_it_was_given_up() {
        let mut space = Space::new();
        let page = space.take(1);
        let _other = space.take(1);
        space.freeze(1);
        space.reclaim(1);
        space.give_up(Run { page, pages: 1 }, 2, false);
        space.reclaim(1);
        assert_ne!(space.take(1), page, "checkpoint 1 has it");
        space.freeze(2);
        space.reclaim(2);
        assert!(
            (0..100).all(|_| space.take(1) != page),
            "checkpoint 1 could still be needed"
        );
        space.reclaim(3);
        assert_eq!(space.take(1), page);
    }

    #[test]
    fn a_pinned_checkpoint_keeps_its_pages() {
        let mut space = Space::new();
        let page = space.take(1);
        space.pin(1);
        space.give_up(Run { page, pages: 1 }, 2, false);
        space.reclaim(9);
        assert_eq!(space.available(), 0);
        assert_eq!(space.needed(), space.end() - 1);
        space.unpin(1);
        space.reclaim(9);
        assert_eq!(space.available(), 1);
    }

    #[test]
    fn runs_lie_side_by_side_and_gaps_are_found() {
        let mut space = Space::new();
        let pages: Vec<u64> = (0..200).map(|_| space.take(1)).collect();
        for &page in &pages[70..140] {
            space.give_up(Run { page, pages: 1 }, 1, true);
        }
        assert_eq!(space.take(70), pages[70]);
        assert_eq!(space.take(70), 202);
        assert_eq!(space.available(), 0);
    }

    #[test]
    fn gaps_are_found_wherever_they_are_and_never_overlap() {
        let mut rng = pontoon_wal::disk::sim::Rng::new(1);
        let mut space = Space::new();
        let mut runs: Vec<Run> = Vec::new();
        let mut owner = std::collections::HashMap::new();
        for step in 0..60_000u64 {
            if runs.is_empty() || rng.below(100) < if step < 20_000 { 60 } else { 49 } {
                let pages = if rng.below(3) == 0 {
                    1
                } else {
                    1 + rng.below(150)
                };
                let run = Run {
                    page: space.take(pages),
                    pages,
                };
                for page in run.page..run.page + pages {
                    assert_eq!(owner.insert(page, step), None, "page {page} is taken twice");
                }
                runs.push(run);
            } else {
                let run = runs.swap_remove(rng.below(runs.len() as u64) as usize);
                for page in run.page..run.page + run.pages {
                    owner.remove(&page);
                }
                space.give_up(run, 1, true);
            }
            assert_eq!(
                space.available() + META_PAGES + owner.len() as u64,
                space.end()
            );
        }
        assert!(
            space.end() < 8 * owner.len().max(10_000) as u64,
            "gaps are used again"
        );
    }

    #[test]
    fn the_end_is_cut_down_to_the_last_page_in_use() {
        let mut space = Space::new();
        let first = space.take(1);
        let rest = space.take(50);
        space.give_up(
            Run {
                page: rest,
                pages: 50,
            },
            1,
            true,
        );
        assert_eq!(space.cut_end(), first + 1);
        assert_eq!(space.available(), 0);
        assert_eq!(space.take(3), first + 1);
    }

    #[test]
    fn a_frozen_map_marks_its_own_pages() {
        let mut space = Space::new();
        space.take(MAP_PAGES);
        let frozen = space.freeze(1);
        assert_eq!(frozen.places.len(), 2);
        for (page, _) in &frozen.chunks {
            assert!(space.is_used(*page));
        }
        assert!(space.is_used(frozen.index.page));
    }
}
