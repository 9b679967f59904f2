//! Who this member is, from its first start on.
//!
//! Kept true: a data directory belongs to one member of one cluster, for good.
//! One that holds anything that was not made here is left as it is.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use pontoon_raftgroup::NodeId;
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

use crate::card::Card;
use crate::url::Url;

/// The file, in the data directory.
const FILE: &str = "pontoon.json";
/// What it says of itself.
const FORMAT: u32 = 1;

/// What is written at the first start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    format: u32,
    /// In hexadecimal, as etcd prints it.
    cluster: String,
    member: String,
    /// Whether it joined a cluster that was there.
    pub(crate) join: bool,
    /// The members that it was started with, by id.
    members: BTreeMap<String, Card>,
    /// Where the keys of the new cluster were cut, in hexadecimal.
    splits: Vec<String>,
    /// How many replicas a range of the new cluster had; 0: one on every member.
    #[serde(default)]
    pub(crate) replicas: u64,
}

/// Why a data directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// It holds an etcd's data.
    #[error(
        "{0} holds the data of an etcd, and is left untouched: nothing was started. \
         Give this server a --data-dir of its own, start that etcd again beside it, and bring \
         over what it holds:\n  etcdctl --endpoints ETCD_HOST:PORT make-mirror HOST:PORT\n\
         (it goes on copying until it is interrupted)"
    )]
    Etcd(PathBuf),
    /// It holds something else.
    #[error(
        "{0} holds something ({1:?}) that is not Pontoon's, and is left untouched; \
         choose a directory that is empty or not there yet"
    )]
    Foreign(PathBuf, std::ffi::OsString),
    /// The identity can't be read.
    #[error("{0}: {1}")]
    Unreadable(PathBuf, String),
    /// The disk said no.
    #[error("can't {operation} {}: {error}", file.display())]
    Disk {
        /// What was tried.
        operation: &'static str,
        /// With which file or directory.
        file: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// From the system's error to ours.
fn disk(operation: &'static str, file: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    let file = file.to_owned();
    move |error| IdentityError::Disk {
        operation,
        file,
        error,
    }
}

impl Identity {
    pub(crate) fn new(
        cluster: u64,
        member: NodeId,
        join: bool,
        members: &BTreeMap<NodeId, Card>,
        splits: &[bytes::Bytes],
    ) -> Self {
        let members = members.iter();
        Self {
            format: FORMAT,
            cluster: format!("{cluster:x}"),
            member: format!("{:x}", member.0),
            join,
            members: members
                .map(|(id, card)| (format!("{:x}", id.0), card.clone()))
                .collect(),
            splits: splits.iter().map(|key| hex(key)).collect(),
            replicas: 0,
        }
    }

    /// The one of this directory, if it has one. Changes nothing.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, IdentityError> {
        let file = dir.join(FILE);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return check_empty(dir).map(|()| None);
            }
            Err(error) => return Err(disk("read", &file)(error)),
        };
        let unreadable = |reason: String| IdentityError::Unreadable(file.clone(), reason);
        let identity: Self =
            serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
        if identity.format != FORMAT {
            return Err(unreadable(format!(
                "written by another version (format {}, this one knows {FORMAT})",
                identity.format
            )));
        }
        let readable = identity.numbers().and(identity.splits());
        readable.ok_or_else(|| unreadable("its ids make no sense".to_owned()))?;
        Ok(Some(identity))
    }

    /// Makes it durable, before anything else is written to the directory.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), IdentityError> {
        let (file, new) = (dir.join(FILE), dir.join(format!("{FILE}.new")));
        // As etcd does: nobody else has any business in it.
        let mut made = fs::DirBuilder::new();
        let made = made.recursive(true).mode(0o700).create(dir);
        made.map_err(disk("create", dir))?;
        let text = serde_json::to_string_pretty(self).expect("strings can be written");
        let mut out = File::create(&new).map_err(disk("create", &new))?;
        out.write_all(text.as_bytes())
            .map_err(disk("write", &new))?;
        out.sync_all().map_err(disk("sync", &new))?;
        fs::rename(&new, &file).map_err(disk("rename", &new))?;
        let synced = File::open(dir).and_then(|dir| dir.sync_all());
        synced.map_err(disk("sync", dir))
    }

    pub(crate) fn cluster(&self) -> u64 {
        self.numbers().map_or(0, |(cluster, ..)| cluster)
    }

    pub(crate) fn member(&self) -> NodeId {
        self.numbers().map_or(NodeId(0), |(_, member, _)| member)
    }

    pub(crate) fn members(&self) -> BTreeMap<NodeId, Card> {
        self.numbers().map_or_else(BTreeMap::new, |(.., all)| all)
    }

    pub(crate) fn splits(&self) -> Option<Vec<bytes::Bytes>> {
        self.splits.iter().map(|key| unhex(key)).collect()
    }

    fn numbers(&self) -> Option<(u64, NodeId, BTreeMap<NodeId, Card>)> {
        let number = |text: &String| u64::from_str_radix(text, 16).ok();
        let members = self.members.iter();
        let members = members.map(|(id, card)| Some((NodeId(number(id)?), card.clone())));
        Some((
            number(&self.cluster)?,
            NodeId(number(&self.member)?),
            members.collect::<Option<_>>()?,
        ))
    }
}

/// Refuses a directory that holds anything. One that isn't there is empty too. What was begun and not finished
/// at a first start doesn't count.
pub(crate) fn check_empty(dir: &Path) -> Result<(), IdentityError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(disk("list", dir)(error)),
    };
    for entry in entries {
        let entry = entry.map_err(disk("list", dir))?;
        let name = entry.file_name();
        if name == "lost+found" || name.to_str() == Some(&format!("{FILE}.new")) {
            continue;
        }
        let is_etcd = name == "member" || name == "proxy";
        return Err(match is_etcd {
            true => IdentityError::Etcd(dir.to_owned()),
            false => IdentityError::Foreign(dir.to_owned(), name),
        });
    }
    Ok(())
}

/// The id that etcd gives a member: of its URLs and the cluster's token, or of
/// its URLs and the time if it is added later.
pub(crate) fn member_id(peer_urls: &[Url], salt: &str) -> NodeId {
    let mut urls: Vec<_> = peer_urls.iter().map(Url::to_string).collect();
    urls.sort();
    let mut hash = Sha1::new();
    for url in urls {
        hash.update(url.as_bytes());
    }
    hash.update(salt.as_bytes());
    NodeId(first_bytes(&hash.finalize()))
}

/// The id that etcd gives a cluster: of its first members.
pub(crate) fn cluster_id<'a>(members: impl Iterator<Item = &'a NodeId>) -> u64 {
    let mut ids: Vec<u64> = members.map(|id| id.0).collect();
    ids.sort_unstable();
    let mut hash = Sha1::new();
    for id in ids {
        hash.update(id.to_be_bytes());
    }
    first_bytes(&hash.finalize())
}

fn first_bytes(hash: &[u8]) -> u64 {
    let first = hash.first_chunk().expect("a hash has 20 bytes");
    u64::from_be_bytes(*first)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<bytes::Bytes> {
    let digits = text.as_bytes();
    if !text.is_ascii() || !digits.len().is_multiple_of(2) {
        return None;
    }
    let pairs = (0..digits.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What etcd itself says for its default single member.
    #[test]
    fn ids_are_those_of_etcd() {
        let urls = Url::parse_list("http://localhost:2380").unwrap();
        let id = member_id(&urls, "etcd-cluster");
        assert_eq!(format!("{:x}", id.0), "8e9e05c52164694d");
        assert_eq!(format!("{:x}", cluster_id([id].iter())), "cdf818194e3a8c32");
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Identity::read(dir.path()).unwrap(), None);
        let card = Card {
            name: "a".to_owned(),
            ..Card::default()
        };
        let members = BTreeMap::from([(NodeId(7), card)]);
        let splits = [bytes::Bytes::from_static(b"\0k")];
        let identity = Identity::new(9, NodeId(7), true, &members, &splits);
        identity.write(dir.path()).unwrap();
        let read = Identity::read(dir.path()).unwrap().unwrap();
        assert_eq!(read, identity);
        assert_eq!((read.cluster(), read.member()), (9, NodeId(7)));
        assert_eq!(read.members(), members);
        assert_eq!(read.splits().unwrap(), splits);
    }

    #[test]
    fn foreign_directories_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("member")).unwrap();
        let refused = Identity::read(dir.path()).unwrap_err();
        assert!(matches!(refused, IdentityError::Etcd(_)), "{refused}");
        fs::remove_dir(dir.path().join("member")).unwrap();
        fs::write(dir.path().join("notes.txt"), "").unwrap();
        let refused = Identity::read(dir.path()).unwrap_err();
        assert!(matches!(refused, IdentityError::Foreign(..)), "{refused}");
        fs::write(dir.path().join(FILE), "{}").unwrap();
        let refused = Identity::read(dir.path()).unwrap_err();
        assert!(
            matches!(refused, IdentityError::Unreadable(..)),
            "{refused}"
        );
    }
}
