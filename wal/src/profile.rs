//! What a disk was found to do, in a file that a node can be started with.
//!
//! Kept true: a profile is taken whole or refused, with the reason. One that
//! was damaged, edited or made by something else is never believed.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What the file says it is.
const KIND: &str = "pontoon disk profile";
/// Of its format.
const VERSION: u32 = 1;

/// What was measured, and how the log is best set for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The directory that was looked at.
    pub directory: String,
    /// Its device, if that has a name.
    pub device: String,
    /// When, in seconds since 1970.
    pub made_at_secs: u64,
    /// Bytes that one commit gathers at most.
    pub commit_bytes_max: usize,
    /// Commits in flight at most.
    pub in_flight_max: usize,
    /// The median of a commit beside checkpoints and snapshots.
    pub commit_p50_ns: u64,
    /// Of those, what 99 of 100 take at most.
    pub commit_p99_ns: u64,
    /// Writes per second that were held.
    pub writes_per_s: u64,
}

/// Why a profile is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// It can't be read or written.
    #[error("{path}: {1}", path = .0.display())]
    Io(PathBuf, std::io::Error),
    /// It is something else.
    #[error("{path} is not a disk profile of `pontoonctl disk qualify --profile`: {1}", path = .0.display())]
    Foreign(PathBuf, String),
    /// It is of a later version.
    #[error("{path} is a disk profile of version {1}, this is for version {VERSION}: make it again", path = .0.display())]
    Version(PathBuf, u32),
    /// Its content and its checksum disagree.
    #[error("{} is damaged or was edited (its checksum doesn't match): make it again", .0.display())]
    Damaged(PathBuf),
    /// It says what can't be.
    #[error("{path}: {1}", path = .0.display())]
    Senseless(PathBuf, &'static str),
}

/// The file: what it is, the profile, and a checksum over it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    kind: String,
    version: u32,
    profile: Profile,
    crc32: u32,
}

/// What every version of the file has.
#[derive(Deserialize)]
struct Head {
    kind: String,
    version: u32,
}

impl Profile {
    /// Writes it to a file; one that is there is replaced.
    pub fn write(&self, path: &Path) -> Result<(), ProfileError> {
        let document = Document {
            kind: KIND.to_owned(),
            version: VERSION,
            profile: self.clone(),
            crc32: self.checksum(),
        };
        let mut text =
            serde_json::to_string_pretty(&document).expect("numbers and texts are always JSON");
        text.push('\n');
        std::fs::write(path, text).map_err(|error| ProfileError::Io(path.to_owned(), error))
    }

    /// Reads it back, if it is whole.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let at = || path.to_owned();
        let text = std::fs::read_to_string(path).map_err(|error| ProfileError::Io(at(), error))?;
        let foreign = |error: serde_json::Error| ProfileError::Foreign(at(), error.to_string());
        let head: Head = serde_json::from_str(&text).map_err(foreign)?;
        if head.kind != KIND {
            return Err(ProfileError::Foreign(
                at(),
                format!("it says {:?}", head.kind),
            ));
        }
        if head.version != VERSION {
            return Err(ProfileError::Version(at(), head.version));
        }
        let document: Document = serde_json::from_str(&text).map_err(foreign)?;
        let profile = document.profile;
        if profile.checksum() != document.crc32 {
            return Err(ProfileError::Damaged(at()));
        }
        if !(4096..=64 << 20).contains(&profile.commit_bytes_max) {
            let what = "commit_bytes_max must be from 4 KiB to 64 MiB";
            return Err(ProfileError::Senseless(at(), what));
        }
        if !(1..=64).contains(&profile.in_flight_max) {
            let what = "in_flight_max must be from 1 to 64";
            return Err(ProfileError::Senseless(at(), what));
        }
        if profile.commit_p50_ns == 0 || profile.commit_p99_ns < profile.commit_p50_ns {
            let what = "commit_p50_ns must be above 0 and at most commit_p99_ns";
            return Err(ProfileError::Senseless(at(), what));
        }
        Ok(profile)
    }

    fn checksum(&self) -> u32 {
        let text = serde_json::to_string(self).expect("numbers and texts are always JSON");
        crc32fast::hash(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        Profile {
            directory: "/var/lib/pontoon".to_owned(),
            device: "nvme0n1".to_owned(),
            made_at_secs: 1,
            commit_bytes_max: 1 << 20,
            in_flight_max: 3,
            commit_p50_ns: 150_000,
            commit_p99_ns: 900_000,
            writes_per_s: 60_000,
        }
    }

    fn refused(change: impl FnOnce(String) -> String) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profile");
        profile().write(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, change(text)).unwrap();
        Profile::read(&path).unwrap_err().to_string()
    }

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profile");
        profile().write(&path).unwrap();
        assert_eq!(Profile::read(&path).unwrap(), profile());
    }

    #[test]
    fn damaged_and_foreign_ones_are_refused() {
        let damaged = refused(|text| text.replace("900000", "900001"));
        assert!(damaged.contains("checksum"), "{damaged}");
        let cut = refused(|text| text[..text.len() / 2].to_owned());
        assert!(cut.contains("not a disk profile"), "{cut}");
        let foreign = refused(|_| r#"{"kind":"a fio job","version":1}"#.to_owned());
        assert!(foreign.contains("a fio job"), "{foreign}");
        let later = refused(|text| text.replace("\"version\": 1", "\"version\": 9"));
        assert!(later.contains("version 9"), "{later}");
    }

    #[test]
    fn senseless_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profile");
        for change in [
            |p: &mut Profile| p.in_flight_max = 0,
            |p: &mut Profile| p.commit_bytes_max = 1,
            |p: &mut Profile| p.commit_p50_ns = 0,
        ] {
            let mut wrong = profile();
            change(&mut wrong);
            wrong.write(&path).unwrap();
            assert!(Profile::read(&path).is_err());
        }
        assert!(Profile::read(&dir.path().join("none")).is_err());
    }
}
