//! What a log on disk means after any crash: a table, then the walk that
//! feeds it.
//!
//! Kept true: nothing acknowledged is ever left out, and nothing is skipped
//! silently. The only thing that may be cut is a tail that nobody was told
//! is durable. Recovery changes nothing on disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::blocks::{BLOCK_BYTES, Blocks};
use crate::disk::{Disk, DiskFile, read_blocks, read_into};
use crate::effects::{Effect, Effects};
use crate::error::{Damage, Finding, WalError};
use crate::format::{
    BadStart, CommitHeader, FIRST_COMMIT, IDENTITY_NAME, Identity, PREPARING_NAME, RESERVE_NAME,
    SegmentHeader, Trailer, VERSION, segment_name, segment_of_name,
};
use crate::position::{Lsn, SegmentId, StreamId};
use crate::replay::Replay;
use crate::scan::{Chain, Found, Image, scan};
use crate::stream::Logged;

/// What stands where the next commit should start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Here {
    Commit,
    Torn,
    Stale,
    Blank,
}

/// What the commits that lie further on say about this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// There are none.
    Nothing,
    /// The next segment starts with the very commit that is wanted.
    Continues,
    /// There are some, and none was written after this place was durable.
    Unacknowledged,
    /// One was written when this place was already durable.
    Acknowledged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The commit counts.
    Accept,
    /// Go on in the next segment.
    NextSegment,
    /// The log ends here; what lies further on was never acknowledged.
    End,
    /// Something acknowledged is damaged: refuse to go on.
    Stop,
}

/// Every combination, once. `docs/format.md` has the same table.
pub(crate) const TABLE: [(Here, Ahead, Decision); 16] = {
    use Ahead::{Acknowledged, Continues, Nothing, Unacknowledged};
    use Decision::{Accept, End, NextSegment, Stop};
    use Here::{Blank, Commit, Stale, Torn};
    [
        (Commit, Nothing, Accept),
        (Commit, Continues, Accept),
        (Commit, Unacknowledged, Accept),
        (Commit, Acknowledged, Accept),
        // A torn tail: the crash came while it was written.
        (Torn, Nothing, End),
        // The wanted commit can't stand in two places.
        (Torn, Continues, Stop),
        // Torn, and a later commit in flight at the same time is whole.
        (Torn, Unacknowledged, End),
        (Torn, Acknowledged, Stop),
        // Left over from before an earlier cut.
        (Stale, Nothing, End),
        (Stale, Continues, NextSegment),
        (Stale, Unacknowledged, End),
        (Stale, Acknowledged, Stop),
        // Zeros, or a recycled segment's old bytes.
        (Blank, Nothing, End),
        (Blank, Continues, NextSegment),
        // Lost, and a later commit in flight at the same time is whole.
        (Blank, Unacknowledged, End),
        (Blank, Acknowledged, Stop),
    ]
};

pub(crate) fn decide(here: Here, ahead: Ahead) -> Decision {
    TABLE
        .iter()
        .find(|row| (row.0, row.1) == (here, ahead))
        .map(|row| row.2)
        .expect("the table has every combination")
}

/// How much of sealed segments is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Their footers.
    Footers,
    /// Every record, compared with the footers.
    Everything,
}

/// A log as it was found.
pub(crate) struct Recovered {
    pub(crate) identity: Identity,
    /// Segments with commits, oldest first; there is always one.
    pub(crate) segments: Vec<Segment>,
    /// Segments after the end of the log, ready to be used.
    pub(crate) spares: Vec<Segment>,
    pub(crate) streams: BTreeMap<StreamId, Logged>,
    pub(crate) chain: Chain,
    /// Where the next commit goes.
    pub(crate) end: Lsn,
    /// Files that mean nothing any more.
    pub(crate) litter: Vec<String>,
    pub(crate) has_reserve: bool,
    /// Whether commits after the end were found that nobody was told of.
    pub(crate) cut: bool,
}

/// A segment file as it was found.
pub(crate) struct Segment {
    pub(crate) id: SegmentId,
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) sealed: bool,
    pub(crate) effects: Effects,
    pub(crate) first_seq: u64,
    pub(crate) chain: Chain,
    /// Where its commits end.
    pub(crate) end: u32,
}

/// What is shown of each commit on the way.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(SegmentId, u32, &CommitHeader, &[Effect]);

/// Reads the log in `dir`. `None` if there never was one.
pub(crate) fn recover(
    disk: &dyn Disk,
    dir: &Path,
    depth: Depth,
    visit: Visit<'_>,
) -> Result<Option<Recovered>, WalError> {
    let names = Names::list(disk, dir)?;
    let Some(identity) = read_identity(disk, dir, &names)? else {
        return Ok(None);
    };
    let mut walk = Walk {
        disk,
        dir,
        depth,
        identity,
        image: Blocks::default(),
    };
    let damage = match walk.log(&names, SegmentId(1), visit) {
        Err(WalError::Damaged(damage)) => damage,
        result => return result.map(Some),
    };
    // What is damaged may not be needed any more: then the log can be
    // followed from the segment behind it, and says that it begins there.
    let name = damage.file.file_name().and_then(|name| name.to_str());
    let damaged = name.and_then(segment_of_name).flatten();
    match damaged.map(SegmentId::next) {
        Some(behind) if walk.log(&names, behind, &mut |_, _, _, _| {}).is_ok() => {
            walk.log(&names, behind, visit).map(Some)
        }
        _ => Err(WalError::Damaged(damage)),
    }
}

/// What the directory holds.
struct Names {
    segments: Vec<SegmentId>,
    litter: Vec<String>,
    has_identity: bool,
    has_reserve: bool,
}

impl Names {
    fn list(disk: &dyn Disk, dir: &Path) -> Result<Self, WalError> {
        let mut this = Self {
            segments: Vec::new(),
            litter: Vec::new(),
            has_identity: false,
            has_reserve: false,
        };
        let names = disk
            .list(dir)
            .map_err(|error| WalError::io(dir, "list", error))?;
        for name in names {
            match segment_of_name(&name) {
                Some(Some(id)) => this.segments.push(id),
                Some(None) => {
                    return Err(WalError::from(Damage {
                        file: dir.join(name),
                        offset: 0,
                        what: "this is not the name of a segment".to_owned(),
                        stream: None,
                        index: None,
                    }));
                }
                None if name == IDENTITY_NAME => this.has_identity = true,
                None if name == RESERVE_NAME => this.has_reserve = true,
                None if name == PREPARING_NAME => this.litter.push(name),
                None => {}
            }
        }
        this.segments.sort_unstable();
        Ok(this)
    }
}

/// The identity is written last when a log is made, so without it there is
/// no log yet, unless a segment holds commits.
fn read_identity(disk: &dyn Disk, dir: &Path, names: &Names) -> Result<Option<Identity>, WalError> {
    let path = dir.join(IDENTITY_NAME);
    let damaged = |what: String| {
        WalError::from(Damage {
            file: path.clone(),
            offset: 0,
            what,
            stream: None,
            index: None,
        })
    };
    if !names.has_identity {
        return match names.segments.as_slice() {
            [] | [SegmentId(1)] if !any_commit(disk, dir, names)? => Ok(None),
            _ => Err(damaged("the identity of the log is missing".to_owned())),
        };
    }
    let block = disk
        .open(&path, false)
        .and_then(|file| read_blocks(&*file, 0, BLOCK_BYTES))
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => damaged("too short".to_owned()),
            _ => WalError::io(&path, "read", error),
        })?;
    match Identity::read(block.as_slice()) {
        Ok(identity) => Ok(Some(identity)),
        Err(BadStart::Damaged(what)) => Err(damaged(what.to_owned())),
        Err(BadStart::Version(found)) => Err(WalError::WrongVersion {
            file: path,
            found,
            known: VERSION,
        }),
    }
}

fn any_commit(disk: &dyn Disk, dir: &Path, names: &Names) -> Result<bool, WalError> {
    for &id in &names.segments {
        let path = dir.join(segment_name(id));
        let start = disk
            .open(&path, false)
            .and_then(|file| read_blocks(&*file, 0, 2 * BLOCK_BYTES));
        let start = match start {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(true),
            start => start.map_err(|error| WalError::io(&path, "read", error))?,
        };
        let (header, commit) = start.as_slice().split_at(BLOCK_BYTES);
        let commits = SegmentHeader::read(header).is_ok_and(|header| {
            CommitHeader::read(commit, header.salt, id, FIRST_COMMIT).is_some()
        });
        if commits {
            return Ok(true);
        }
    }
    Ok(false)
}

/// How a segment ended.
enum After {
    Next,
    End { cut: bool },
}

struct Walk<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    depth: Depth,
    identity: Identity,
    /// Memory for one segment, used again for each.
    image: Blocks,
}

impl Walk<'_> {
    /// The log in the segments from `from` on.
    fn log(
        &mut self,
        names: &Names,
        from: SegmentId,
        visit: Visit<'_>,
    ) -> Result<Recovered, WalError> {
        let mut files = self.open_all(&names.segments, from)?;
        let mut chain = Chain::default();
        let mut replay = Replay::default();
        let mut used = 0;
        let mut cut = false;
        while used < files.len() {
            let next_exists = used + 1 < files.len();
            match self.segment(&mut files, used, &mut chain, visit)? {
                After::Next if !next_exists => {
                    let missing = files[used].id.next();
                    return Err(self.missing(missing, "the segment after a sealed one is missing"));
                }
                After::Next => {}
                After::End { cut: was_cut } => {
                    cut = was_cut;
                    break;
                }
            }
            replay.absorb(files[used].id, &files[used].effects);
            if files[used].sealed {
                files[used].effects = Effects::default();
            }
            used += 1;
        }
        let last = files
            .get(used)
            .ok_or_else(|| self.missing(SegmentId(1), "there is no segment"))?;
        replay.absorb(last.id, &last.effects);
        let (start, end) = (files[0].id, Lsn::new(last.id, last.end));
        let needed = match chain.seq {
            // Not one commit says where the log begins. Only a new log is like that.
            0 => start.0 - 1,
            _ => chain.first_segment,
        };
        if needed.max(1) < start.0 {
            let mut before = (needed.max(1)..start.0).map(SegmentId);
            let missing = before.find(|id| !names.segments.contains(id));
            return Err(self.missing(missing.unwrap_or(start), "a segment is missing"));
        }
        let mut litter = names.litter.clone();
        litter.extend(
            names
                .segments
                .iter()
                .filter(|&&id| id < start)
                .map(|&id| segment_name(id)),
        );
        let streams = replay
            .finish(last.id)
            .map_err(|finding| finding.in_dir(self.dir))?;
        let spares = files.split_off(used + 1);
        Ok(Recovered {
            identity: self.identity,
            segments: files,
            spares,
            streams,
            chain,
            end,
            litter,
            has_reserve: names.has_reserve,
            cut,
        })
    }

    fn missing(&self, id: SegmentId, what: &str) -> WalError {
        Finding::new(id, 0, what).in_dir(self.dir).into()
    }

    /// Opens the segments that follow each other up to the newest one; older
    /// ones behind a gap are only needed if a commit says so.
    fn open_all(&self, ids: &[SegmentId], from: SegmentId) -> Result<Vec<Segment>, WalError> {
        let mut segments = Vec::new();
        for &id in ids.iter().rev().filter(|&&id| id >= from) {
            let follows = segments
                .last()
                .is_none_or(|newer: &Segment| id.next() == newer.id);
            if !follows {
                break;
            }
            segments.push(self.open(id)?);
        }
        segments.reverse();
        Ok(segments)
    }

    fn open(&self, id: SegmentId) -> Result<Segment, WalError> {
        let path = self.dir.join(segment_name(id));
        let damaged = |what: &str| self.missing(id, what);
        let reading = |error| WalError::io(&path, "read", error);
        let file = self.disk.open(&path, false).map_err(reading)?;
        let len = file.size().map_err(reading)?;
        if len < BLOCK_BYTES as u64 {
            return Err(damaged("the segment is shorter than its header"));
        }
        let block = read_blocks(&*file, 0, BLOCK_BYTES).map_err(reading)?;
        let header = match SegmentHeader::read(block.as_slice()) {
            Ok(header) => header,
            Err(BadStart::Damaged(what)) => {
                return Err(damaged(&format!("the segment's header: {what}")));
            }
            Err(BadStart::Version(found)) => {
                return Err(WalError::WrongVersion {
                    file: path,
                    found,
                    known: VERSION,
                });
            }
        };
        if header.log != self.identity.log || header.node != self.identity.node {
            return Err(damaged("the segment belongs to another log"));
        }
        if header.segment != id.0 {
            return Err(damaged(&format!(
                "this is a copy of segment {} under another name",
                header.segment
            )));
        }
        if len != u64::from(header.segment_bytes) {
            return Err(damaged(&format!(
                "the segment has {len} bytes instead of {}",
                header.segment_bytes
            )));
        }
        Ok(Segment {
            id,
            header,
            file,
            sealed: false,
            effects: Effects::default(),
            first_seq: 0,
            chain: Chain::default(),
            end: FIRST_COMMIT,
        })
    }

    /// Follows the log through `files[at]`.
    fn segment(
        &mut self,
        files: &mut [Segment],
        at: usize,
        chain: &mut Chain,
        visit: Visit<'_>,
    ) -> Result<After, WalError> {
        let footer = self.footer(&files[at], chain)?;
        if self.depth == Depth::Footers
            && let Some((trailer, effects)) = footer
        {
            let file = &mut files[at];
            *chain = Chain {
                seq: trailer.last_seq,
                epoch: trailer.last_epoch,
                first_segment: trailer.first_segment,
                flags: trailer.last_flags,
            };
            (file.sealed, file.end) = (true, trailer.end);
            (file.first_seq, file.chain) = (trailer.first_seq, *chain);
            file.effects = effects;
            return Ok(After::Next);
        }

        self.load(&files[at])?;
        let id = files[at].id;
        let image = image(&files[at], &self.image);
        let scanned = scan(image, chain, |offset, header, effects| {
            visit(id, offset, header, effects);
        });
        let file = &mut files[at];
        (file.first_seq, file.end, file.chain) = (scanned.first_seq, scanned.end, *chain);
        file.effects = scanned.effects;

        if let Some((trailer, effects)) = footer {
            file.sealed = true;
            let whole = trailer.end == file.end;
            let told = Chain {
                seq: trailer.last_seq,
                epoch: trailer.last_epoch,
                first_segment: trailer.first_segment,
                flags: trailer.last_flags,
            };
            if whole
                && (told, trailer.first_seq) == (*chain, file.first_seq)
                && effects.streams == file.effects.streams
            {
                return Ok(After::Next);
            }
            // A footer is written when all before it is durable.
            return Err(match scanned.stopped_by {
                // The footer knows better than a damaged record whose it is.
                Found::Torn(finding) => Finding {
                    entry: effects.entry_at(finding.at.offset()).or(finding.entry),
                    ..finding
                },
                _ if whole => Finding::new(
                    id,
                    trailer.end as usize,
                    "the footer does not describe the segment",
                ),
                _ => image.describe_blank(scanned.end),
            }
            .in_dir(self.dir)
            .into());
        }

        let (here, finding) = match scanned.stopped_by {
            Found::Torn(finding) => (Here::Torn, finding),
            Found::Stale => (Here::Stale, image.describe_blank(scanned.end)),
            Found::Blank | Found::Commit(..) => (Here::Blank, image.describe_blank(scanned.end)),
        };
        let (ahead, finding) = self.look_ahead(files, at, chain, here, finding)?;
        match decide(here, ahead) {
            Decision::NextSegment => Ok(After::Next),
            Decision::Stop => Err(finding.in_dir(self.dir).into()),
            Decision::Accept | Decision::End => Ok(After::End {
                cut: here == Here::Torn || ahead != Ahead::Nothing,
            }),
        }
    }

    /// What lies beyond the end of `files[at]`'s commits, and where the damage
    /// is if it turns out to be damage. The segment's image is loaded.
    fn look_ahead(
        &mut self,
        files: &[Segment],
        at: usize,
        chain: &Chain,
        here: Here,
        mut finding: Finding,
    ) -> Result<(Ahead, Finding), WalError> {
        let end = Lsn::new(files[at].id, files[at].end);
        // A torn commit's own header proves nothing about itself.
        let beyond = match here {
            Here::Torn => files[at].end + BLOCK_BYTES as u32,
            _ => files[at].end,
        };
        let mut best = image(&files[at], &self.image).durable_ahead(beyond, chain);
        for (distance, later) in files[at + 1..].iter().enumerate() {
            self.load(later)?;
            let image = image(later, &self.image);
            if distance == 0 && best.is_none() {
                if image.continues(chain) {
                    return Ok((Ahead::Continues, finding));
                }
                // Nothing more in this segment: then the next one's start is what is missing.
                if here != Here::Torn && image.durable_ahead(FIRST_COMMIT, chain) > Some(end) {
                    finding = image.describe_blank(FIRST_COMMIT);
                }
            }
            best = best.max(image.durable_ahead(FIRST_COMMIT, chain));
        }
        let ahead = match best {
            None => Ahead::Nothing,
            Some(durable) if durable > end => Ahead::Acknowledged,
            Some(_) => Ahead::Unacknowledged,
        };
        Ok((ahead, finding))
    }

    /// The footer of a sealed segment, if it has a whole one that fits the chain.
    fn footer(
        &self,
        file: &Segment,
        chain: &Chain,
    ) -> Result<Option<(Trailer, Effects)>, WalError> {
        let reading = |error| {
            let path = self.dir.join(segment_name(file.id));
            WalError::io(&path, "read of the footer", error)
        };
        let trailer_at = u64::from(file.header.segment_bytes) - BLOCK_BYTES as u64;
        let block = read_blocks(&*file.file, trailer_at, BLOCK_BYTES).map_err(reading)?;
        let Some(trailer) = Trailer::read(block.as_slice(), file.header.salt, file.id) else {
            return Ok(None);
        };
        let fits = (chain.seq == 0 || trailer.first_seq == chain.seq + 1)
            && trailer.last_epoch >= chain.epoch;
        if !fits {
            return Ok(None);
        }
        let effects = read_footer(&*file.file, &file.header, &trailer).map_err(reading)?;
        if effects.is_none() {
            tracing::warn!(
                "the footer of {} is damaged: reading the segment instead",
                segment_name(file.id)
            );
        }
        Ok(effects.map(|effects| (trailer, effects)))
    }

    fn load(&mut self, file: &Segment) -> Result<(), WalError> {
        self.image.resize(file.header.segment_bytes as usize);
        read_into(&*file.file, 0, self.image.as_mut_slice()).map_err(|error| {
            let path = self.dir.join(segment_name(file.id));
            WalError::io(&path, "read", error)
        })
    }
}

/// The footer that a trailer points to, unless it is damaged.
pub(crate) fn read_footer(
    file: &dyn DiskFile,
    header: &SegmentHeader,
    trailer: &Trailer,
) -> std::io::Result<Option<Effects>> {
    let (end, bytes) = (u64::from(trailer.end), trailer.footer_bytes as usize);
    let blocks = bytes.next_multiple_of(BLOCK_BYTES);
    let room = u64::from(header.segment_bytes) - BLOCK_BYTES as u64;
    if end + blocks as u64 > room || !end.is_multiple_of(BLOCK_BYTES as u64) {
        return Ok(None);
    }
    let footer = Bytes::from_owner(read_blocks(file, end, blocks)?).slice(..bytes);
    if Trailer::footer_crc(&footer, header.salt) != trailer.footer_crc {
        return Ok(None);
    }
    Ok(Effects::decode(footer))
}

fn image<'a>(file: &Segment, bytes: &'a Blocks) -> Image<'a> {
    Image {
        segment: file.id,
        salt: file.header.salt,
        bytes: bytes.as_slice(),
    }
}

#[cfg(test)]
mod rows;
