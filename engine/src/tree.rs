//! A B-tree over pages: one table of a store.
//!
//! Kept true: every branch knows how many entries lie under each child, so
//! that the rank of a key is found on the way down; all leaves have the same
//! depth; no node but a root is empty, and roots are not either (a table
//! without entries has no root).

use smallvec::SmallVec;

use crate::error::EngineError;
use crate::format::PAGE_BYTES;
use crate::node::{self, Body, Cell, Child, Item, Node, ROOM, RunRef};
use crate::pages::Pages;
use crate::space::Run;

/// Levels that a tree can't exceed: even half-empty branches would hold more
/// entries than there are atoms to store them.
const LEVELS_MAX: usize = 40;
/// Nodes with fewer bytes look for a neighbour to join.
const THIN_BYTES: usize = PAGE_BYTES / 4;

/// Children that a cursor asks for before it needs them.
const READ_AHEAD: usize = 32;

/// From the root down: a page and which of its cells was taken.
type Path = SmallVec<[(u64, usize); 8]>;

/// What `key` holds.
pub(crate) fn get<'a>(
    pages: &'a Pages,
    root: Child,
    key: &[u8],
) -> Result<Option<Item<'a>>, EngineError> {
    if root.page == 0 {
        return Ok(None);
    }
    let mut node = pages.node(root.page)?;
    while !node.is_leaf() {
        node = below(pages, node, node.route(key))?;
    }
    Ok(node.search(key).ok().map(|i| node.item(i)))
}

/// How many keys are below `key`.
pub(crate) fn rank(pages: &Pages, root: Child, key: &[u8]) -> Result<u64, EngineError> {
    if root.page == 0 {
        return Ok(0);
    }
    let mut rank = 0;
    let mut node = pages.node(root.page)?;
    while !node.is_leaf() {
        let i = node.route(key);
        rank += (0..i).map(|i| node.child(i).count).sum::<u64>();
        node = below(pages, node, i)?;
    }
    let (Ok(i) | Err(i)) = node.search(key);
    Ok(rank + i as u64)
}

/// The key that so many are below; `None` if there aren't so many.
pub(crate) fn select(
    pages: &Pages,
    root: Child,
    rank: u64,
) -> Result<Option<Vec<u8>>, EngineError> {
    if root.page == 0 {
        return Ok(None);
    }
    let mut left = rank;
    let mut node = pages.node(root.page)?;
    while !node.is_leaf() {
        let mut i = 0;
        while i + 1 < node.count() && node.child(i).count <= left {
            left -= node.child(i).count;
            i += 1;
        }
        node = below(pages, node, i)?;
    }
    let place = usize::try_from(left).ok().filter(|i| *i < node.count());
    Ok(place.map(|i| node.key(i)))
}

fn below<'a>(pages: &'a Pages, node: Node<'a>, i: usize) -> Result<Node<'a>, EngineError> {
    let page = node.child(i).page;
    let child = pages.node(page)?;
    if child.level() + 1 != node.level() {
        return Err(pages.damaged(page, "a node of the wrong level"));
    }
    Ok(child)
}

/// Sets what `key` holds. Returns the run of what it held before, if it did.
pub(crate) fn put(
    pages: &mut Pages,
    root: &mut Child,
    key: &[u8],
    item: Item<'_>,
) -> Result<Option<Option<RunRef>>, EngineError> {
    let place = find(pages, root, key)?;
    let old = place.item(pages)?.map(|item| item.run);
    put_at(pages, root, place, key, item)?;
    Ok(old)
}

/// Where a key is, or would be, on pages that may be changed. It holds until
/// its table is changed or a generation ends.
pub(crate) struct Place {
    path: Path,
    found: bool,
}

impl Place {
    /// What the key holds.
    pub(crate) fn item<'a>(&self, pages: &'a Pages) -> Result<Option<Item<'a>>, EngineError> {
        match self.path.last() {
            Some(&(leaf, i)) if self.found => Ok(Some(pages.node(leaf)?.item(i))),
            _ => Ok(None),
        }
    }
}

/// Sets what the key at `place` holds.
pub(crate) fn put_at(
    pages: &mut Pages,
    root: &mut Child,
    place: Place,
    key: &[u8],
    item: Item<'_>,
) -> Result<(), EngineError> {
    let Place { mut path, found } = place;
    let Some(&(leaf, i)) = path.last() else {
        let page = pages.add_node(node::build(0, &[Body::of_item(item).cell(key)]));
        *root = Child { page, count: 1 };
        return Ok(());
    };
    let body = Body::of_item(item);
    let cell = body.cell(key);
    let mut grown = None;
    if !node::put(pages.node_mut(leaf), i, found, &cell) {
        let image = make_room(pages.node(leaf)?, i, found, &cell);
        grown = replace(pages, root, &mut path, image)?;
    }
    add_counts(pages, root, &path, i64::from(!found));
    // What was split off hangs itself in one level up, and so on.
    while let Some((separator, right)) = grown {
        let (child, _) = path.pop().expect("the loop ends at the root");
        let left_count = pages.node(child)?.total();
        let right = Child {
            page: right,
            count: pages.node(right)?.total(),
        };
        let left = Child {
            page: child,
            count: left_count,
        };
        let right_body = Body::of_child(right);
        let right_cell = right_body.cell(&separator);
        let Some(&(parent, i)) = path.last() else {
            let left_body = Body::of_child(left);
            let level = pages.node(child)?.level() + 1;
            let image = node::build(level, &[left_body.cell(&[]), right_cell]);
            root.page = pages.add_node(image);
            break;
        };
        node::set_child(pages.node_mut(parent), i, left);
        grown = None;
        if !node::put(pages.node_mut(parent), i + 1, false, &right_cell) {
            let image = make_room(pages.node(parent)?, i + 1, false, &right_cell);
            grown = replace(pages, root, &mut path, image)?;
        }
    }
    Ok(())
}

/// Removes `key`. Returns the run of what it held, if it was there.
pub(crate) fn remove(
    pages: &mut Pages,
    root: &mut Child,
    key: &[u8],
) -> Result<Option<Option<RunRef>>, EngineError> {
    // Most removals find their key, but one that doesn't must not copy pages.
    if get(pages, *root, key)?.is_none() {
        return Ok(None);
    }
    let place = find(pages, root, key)?;
    let run = place.item(pages)?.and_then(|item| item.run);
    remove_at(pages, root, place)?;
    Ok(Some(run))
}

/// Removes the key at `place`, where there is one.
pub(crate) fn remove_at(
    pages: &mut Pages,
    root: &mut Child,
    place: Place,
) -> Result<(), EngineError> {
    let Place { mut path, found } = place;
    let Some(&(leaf, i)) = path.last().filter(|_| found) else {
        return Ok(());
    };
    add_counts(pages, root, &path, -1);
    node::remove(pages.node_mut(leaf), i);
    slim(pages, root, &mut path)
}

/// After a removal from the last node of `path`: lets it join a neighbour if
/// it became thin, and its parents likewise.
fn slim(pages: &mut Pages, root: &mut Child, path: &mut Path) -> Result<(), EngineError> {
    while let Some((page, _)) = path.pop() {
        let node = pages.node(page)?;
        let (used, count, level) = (node.used(), node.count(), node.level());
        let Some(&(parent, i)) = path.last() else {
            if count == 0 {
                give_up_node(pages, page)?;
                *root = Child::default();
            } else if level > 0 && count == 1 {
                // The tree loses a level; its new root may have but one child too.
                root.page = node.child(0).page;
                give_up_node(pages, page)?;
                path.push((root.page, 0));
                continue;
            }
            return Ok(());
        };
        if count == 0 {
            give_up_node(pages, page)?;
            node::remove(pages.node_mut(parent), i);
            continue;
        }
        if used >= THIN_BYTES && node.bytes().len() == PAGE_BYTES {
            return Ok(());
        }
        let siblings = pages.node(parent)?.count();
        let joined =
            i + 1 < siblings && join(pages, parent, i)? || i > 0 && join(pages, parent, i - 1)?;
        if !joined {
            return Ok(());
        }
    }
    Ok(())
}

/// Joins children `i` and `i + 1` of `parent`, if they fit in one page.
fn join(pages: &mut Pages, parent: u64, i: usize) -> Result<bool, EngineError> {
    let branch = pages.node(parent)?;
    let (left, right) = (branch.child(i), branch.child(i + 1));
    let between = branch.key(i + 1);
    let image = {
        let (a, b) = (pages.node(left.page)?, pages.node(right.page)?);
        if a.used() + b.used() > PAGE_BYTES + THIN_BYTES {
            return Ok(false);
        }
        let mut cells = a.cells();
        let first = cells.len();
        cells.extend(b.cells());
        if !b.is_leaf() {
            cells[first].key = [&between, &[]];
        }
        // Not to the brim, or the next insertion would part them again.
        if node::image_bytes(a.level(), &cells) > PAGE_BYTES - THIN_BYTES / 2 {
            return Ok(false);
        }
        node::build(a.level(), &cells)
    };
    let page = pages.own(left.page)?;
    let page = pages.replace(page, image);
    give_up_node(pages, right.page)?;
    let count = left.count + right.count;
    node::set_child(pages.node_mut(parent), i, Child { page, count });
    node::remove(pages.node_mut(parent), i + 1);
    Ok(true)
}

fn give_up_node(pages: &mut Pages, page: u64) -> Result<(), EngineError> {
    let length = pages.node_bytes(page)?;
    pages.give_up(Run {
        page,
        pages: (length / PAGE_BYTES) as u64,
    });
    Ok(())
}

/// Goes down to where `key` belongs and makes the pages on the way changeable.
pub(crate) fn find(pages: &mut Pages, root: &mut Child, key: &[u8]) -> Result<Place, EngineError> {
    if root.page == 0 {
        return Ok(Place {
            path: Path::new(),
            found: false,
        });
    }
    let mut path = Path::new();
    let mut page = root.page;
    let found = loop {
        let node = pages.node(page)?;
        if path.len() >= LEVELS_MAX {
            return Err(pages.damaged(page, "the tree is too deep"));
        }
        if node.is_leaf() {
            let (found, i) = match node.search(key) {
                Ok(i) => (true, i),
                Err(i) => (false, i),
            };
            path.push((page, i));
            break found;
        }
        let i = node.route(key);
        path.push((page, i));
        page = below(pages, node, i).map(|_| node.child(i).page)?;
    };
    if !pages.is_own(page) {
        let mut parent: Option<(u64, usize)> = None;
        for step in &mut path {
            let owned = pages.own(step.0)?;
            if owned != step.0 {
                match parent {
                    None => root.page = owned,
                    Some((parent, i)) => {
                        let count = pages.node(parent)?.child(i).count;
                        node::set_child(pages.node_mut(parent), i, Child { page: owned, count });
                    }
                }
                step.0 = owned;
            }
            parent = Some(*step);
        }
    }
    Ok(Place { path, found })
}

fn add_counts(pages: &mut Pages, root: &mut Child, path: &Path, change: i64) {
    if change == 0 {
        return;
    }
    root.count = root.count.wrapping_add_signed(change);
    for &(page, i) in &path[..path.len() - 1] {
        let bytes = pages.node_mut(page);
        let child = Node::new(bytes).child(i);
        let count = child.count.wrapping_add_signed(change);
        node::set_child(bytes, i, Child { count, ..child });
    }
}

/// What becomes of a node that has no room for a cell.
enum Image {
    /// It is laid out anew.
    One(Vec<u8>),
    /// It stays as it is, and this comes after it.
    Added(Vec<u8>, Vec<u8>),
    /// It is cut in two.
    Two(Vec<u8>, Vec<u8>, Vec<u8>),
}

/// The node with `new` in place `i` (of what is there, if `replace`): laid
/// out anew, in two halves with the key between them if one page is not enough.
fn make_room(node: Node<'_>, i: usize, replace: bool, new: &Cell<'_>) -> Image {
    // Keys that only ever grow leave full pages behind.
    let added = || {
        let separator = node::separator(&node.key(i - 1), &new.key());
        Image::Added(separator, node::build(0, &[*new]))
    };
    let is_last = node.is_leaf() && !replace && i > 0 && i == node.count();
    if is_last && node.is_packed_for(new) {
        return added();
    }
    let mut cells = node.cells();
    match replace {
        true => cells[i] = *new,
        false => cells.insert(i, *new),
    }
    let level = node.level();
    let least = if level == 0 { 1 } else { 2 };
    if cells.len() < 2 * least || node::image_bytes(level, &cells) <= PAGE_BYTES {
        return Image::One(node::build(level, &cells));
    }
    if is_last {
        return added();
    }
    let cut = cut(&cells, least, node.prefix().len());
    let (left, right) = cells.split_at_mut(cut);
    let first = right[0].key();
    let separator = match level {
        0 => node::separator(&left[left.len() - 1].key(), &first),
        _ => first,
    };
    if level > 0 {
        right[0].key = [&[], &[]];
    }
    Image::Two(
        node::build(level, left),
        separator,
        node::build(level, right),
    )
}

/// Where to cut: so that as few pages as possible are needed, then so that the
/// halves are alike.
fn cut(cells: &[Cell<'_>], least: usize, prefix: usize) -> usize {
    let total: usize = cells
        .iter()
        .map(|cell| node::cell_bytes(cell, prefix))
        .sum();
    let mut left = 0;
    let mut best = (usize::MAX, usize::MAX, least);
    for (k, cell) in cells.iter().enumerate().take(cells.len() - least) {
        left += node::cell_bytes(cell, prefix);
        if k + 1 < least {
            continue;
        }
        let right = total - left;
        let pages = left.div_ceil(ROOM) + right.div_ceil(ROOM);
        best = best.min((pages, left.abs_diff(right), k + 1));
    }
    best.2
}

/// Puts the image in the place of the last node of `path`. Returns what was
/// split off, with the key before it.
fn replace(
    pages: &mut Pages,
    root: &mut Child,
    path: &mut Path,
    image: Image,
) -> Result<Option<(Vec<u8>, u64)>, EngineError> {
    let (image, split) = match image {
        Image::Added(separator, right) => {
            return Ok(Some((separator, pages.add_node(right))));
        }
        Image::One(image) => (image, None),
        Image::Two(left, separator, right) => (left, Some((separator, pages.add_node(right)))),
    };
    let last = path.len() - 1;
    let page = pages.replace(path[last].0, image);
    if page != path[last].0 {
        path[last].0 = page;
        match path.get(last.wrapping_sub(1)) {
            None => root.page = page,
            Some(&(parent, i)) => {
                let count = pages.node(parent)?.child(i).count;
                node::set_child(pages.node_mut(parent), i, Child { page, count });
            }
        }
    }
    Ok(split)
}

/// A place in a table, for reading on in key order.
pub(crate) struct Cursor<'a> {
    pages: &'a Pages,
    path: SmallVec<[(Node<'a>, usize); 8]>,
}

impl<'a> Cursor<'a> {
    /// At the first key that is not below `key`.
    pub(crate) fn seek(pages: &'a Pages, root: Child, key: &[u8]) -> Result<Self, EngineError> {
        let mut cursor = Self {
            pages,
            path: SmallVec::new(),
        };
        if root.page == 0 {
            return Ok(cursor);
        }
        let mut node = pages.node(root.page)?;
        while !node.is_leaf() {
            let i = node.route(key);
            cursor.path.push((node, i));
            node = below(pages, node, i)?;
        }
        let (Ok(i) | Err(i)) = node.search(key);
        cursor.path.push((node, i));
        if i == node.count() {
            cursor.climb()?;
        }
        Ok(cursor)
    }

    /// The leaf and the place in it; `None` behind the last key.
    pub(crate) fn here(&self) -> Option<(Node<'a>, usize)> {
        let &(leaf, i) = self.path.last()?;
        (i < leaf.count()).then_some((leaf, i))
    }

    pub(crate) fn item(&self) -> Option<Item<'a>> {
        self.here().map(|(leaf, i)| leaf.item(i))
    }

    /// Sets `key` to the key here.
    pub(crate) fn key_into(&self, key: &mut Vec<u8>) -> bool {
        key.clear();
        match self.here() {
            Some((leaf, i)) => leaf.key_into(i, key),
            None => return false,
        }
        true
    }

    /// Goes on to the first key of the next leaf.
    pub(crate) fn next_leaf(&mut self) -> Result<(), EngineError> {
        if let Some((leaf, i)) = self.path.last_mut() {
            *i = leaf.count();
            return self.climb();
        }
        Ok(())
    }

    /// Goes on to the next key.
    pub(crate) fn next(&mut self) -> Result<(), EngineError> {
        if let Some((leaf, i)) = self.path.last_mut() {
            *i += 1;
            if *i >= leaf.count() {
                return self.climb();
            }
        }
        Ok(())
    }

    /// From behind the end of a leaf to the start of the next.
    fn climb(&mut self) -> Result<(), EngineError> {
        let depth = self.path.len();
        let turn = self.path[..depth - 1]
            .iter()
            .rposition(|(node, i)| i + 1 < node.count());
        // Without a next leaf the cursor stays behind the last key.
        let Some(turn) = turn else { return Ok(()) };
        self.path.truncate(turn + 1);
        self.path[turn].1 += 1;
        while self.path.len() < depth {
            let &(node, i) = self.path.last().expect("not empty");
            self.read_ahead(node, i);
            self.path.push((below(self.pages, node, i)?, 0));
        }
        Ok(())
    }

    /// When the next child was never read, those after it probably weren't either.
    fn read_ahead(&self, node: Node<'_>, i: usize) {
        if self.pages.is_cold(node.child(i).page) {
            for i in i..node.count().min(i + READ_AHEAD) {
                let page = node.child(i).page;
                if self.pages.is_cold(page) {
                    self.pages.prefetch(page, 1);
                }
            }
        }
    }

    /// Goes back to the key before; `false`, and no further use, if there is none.
    pub(crate) fn back(&mut self) -> Result<bool, EngineError> {
        let depth = self.path.len();
        let Some(turn) = self.path.iter().rposition(|&(_, i)| i > 0) else {
            self.path.clear();
            return Ok(false);
        };
        self.path.truncate(turn + 1);
        self.path[turn].1 -= 1;
        while self.path.len() < depth {
            let &(node, i) = self.path.last().expect("not empty");
            let child = below(self.pages, node, i)?;
            self.path.push((child, child.count() - 1));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use pontoon_wal::disk::Disk;
    use pontoon_wal::disk::sim::{Rng, SimDisk};

    use super::*;
    use crate::space::Space;

    fn pages() -> Pages {
        let disk = SimDisk::new(1);
        disk.create_dir(Path::new("/t")).unwrap();
        let path = Path::new("/t/tree");
        let file = disk.create_mapped(path).unwrap();
        Pages::new(path, file, 1, Space::new(), 0).unwrap()
    }

    /// Checks depth, order, bounds, prefixes and counts; returns the number of entries.
    fn check(pages: &Pages, page: u64, level: Option<u8>, low: &[u8], high: Option<&[u8]>) -> u64 {
        let node = pages.node(page).unwrap();
        assert!(level.is_none_or(|level| level == node.level()));
        node::check_shape(node.bytes()).unwrap();
        let first = usize::from(!node.is_leaf());
        let keys: Vec<Vec<u8>> = (first..node.count()).map(|i| node.key(i)).collect();
        assert!(keys.is_sorted_by(|a, b| a < b), "keys are in order");
        assert!(
            keys.iter()
                .all(|key| &key[..] >= low && high.is_none_or(|high| &key[..] < high))
        );
        if node.is_leaf() {
            return node.count() as u64;
        }
        let mut total = 0;
        for i in 0..node.count() {
            let child = node.child(i);
            let low = if i == 0 { low } else { &keys[i - 1][..] };
            let high = keys.get(i).map(|key| &key[..]).or(high);
            assert_eq!(
                check(pages, child.page, Some(node.level() - 1), low, high),
                child.count
            );
            total += child.count;
        }
        total
    }

    fn random_key(rng: &mut Rng) -> Vec<u8> {
        let mut key = match rng.below(4) {
            0 => b"/registry/pods/".to_vec(),
            1 => b"/registry/".to_vec(),
            2 => vec![b'a'; rng.below(40) as usize],
            _ => Vec::new(),
        };
        let tail = if rng.below(50) == 0 {
            rng.below(9000)
        } else {
            rng.below(6)
        };
        let alphabet = if rng.below(2) == 0 { 3 } else { 256 };
        key.extend((0..tail).map(|_| rng.below(alphabet) as u8));
        key
    }

    #[test]
    fn a_tree_is_a_sorted_map_that_counts() {
        for seed in 0..12 {
            let mut rng = Rng::new(seed);
            let mut pages = pages();
            let mut root = Child::default();
            let mut twin: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            let removals = 3 + seed % 5;
            for step in 0..6000 {
                // Long stretches of growing and of shrinking.
                let shrinking = step / 1500 % 2 == 1;
                let key = match rng.below(3) {
                    0 => twin
                        .range(random_key(&mut rng)..)
                        .next()
                        .map(|(key, _)| key.clone()),
                    _ => None,
                };
                let key = key.unwrap_or_else(|| random_key(&mut rng));
                if rng.below(10)
                    < if shrinking {
                        10 - removals / 2
                    } else {
                        removals / 2
                    }
                {
                    let gone = remove(&mut pages, &mut root, &key).unwrap().is_some();
                    assert_eq!(gone, twin.remove(&key).is_some());
                } else {
                    let value = vec![rng.below(256) as u8; rng.below(700) as usize];
                    let item = Item {
                        payload: &value,
                        run: None,
                    };
                    let old = put(&mut pages, &mut root, &key, item).unwrap();
                    assert_eq!(old.is_some(), twin.insert(key.clone(), value).is_some());
                }
                assert_eq!(root.count, twin.len() as u64);
                if step % 500 == 0 && root.page != 0 {
                    assert_eq!(check(&pages, root.page, None, &[], None), root.count);
                    // From here on pages are copied before they are changed.
                    pages.freeze();
                }
            }
            let probe = random_key(&mut rng);
            assert_eq!(
                rank(&pages, root, &probe).unwrap(),
                twin.range(..probe).count() as u64
            );
            let mut cursor = Cursor::seek(&pages, root, &[]).unwrap();
            let mut key = Vec::new();
            for (expected, value) in &twin {
                assert!(cursor.key_into(&mut key));
                assert_eq!(&key, expected);
                assert_eq!(cursor.item().unwrap().payload, value);
                assert_eq!(get(&pages, root, expected).unwrap().unwrap().payload, value);
                cursor.next().unwrap();
            }
            assert!(!cursor.key_into(&mut key));
            for expected in twin.keys().rev() {
                assert!(cursor.back().unwrap() && cursor.key_into(&mut key));
                assert_eq!(&key, expected);
            }
            assert!(!cursor.back().unwrap());
        }
    }
}
