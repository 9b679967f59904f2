//! The file that a report is going to be in.
//!
//! Kept true: whether it can be written is known before the work that it
//! reports; until there is a report, nothing is left there that wasn't.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::Page;

/// A file that a report can be written to.
#[derive(Clone, Debug)]
pub struct Destination {
    path: PathBuf,
}

impl Destination {
    /// Tries whether the file can be written. What it holds stays as it is.
    pub fn try_new(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(_) => fs::remove_file(&path)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                OpenOptions::new().write(true).open(&path)?;
            }
            Err(error) => return Err(error),
        }
        Ok(Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the report.
    pub fn write(&self, page: &Page) -> io::Result<()> {
        fs::write(&self.path, page.html())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trying_leaves_nothing_and_changes_nothing() {
        let path = std::env::temp_dir().join(format!("pontoon-plot-{}", std::process::id()));
        let destination = Destination::try_new(&path).unwrap();
        assert!(!path.exists());
        destination.write(&Page::new("first")).unwrap();
        let first = fs::read_to_string(&path).unwrap();
        Destination::try_new(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), first);
        fs::remove_file(&path).unwrap();
        assert!(Destination::try_new(path.join("below")).is_err());
        assert!(Destination::try_new(std::env::temp_dir()).is_err());
    }
}
