//! Versions of what is stored and sent.
//!
//! Kept true: whatever this crate puts into a log or a store begins with the
//! version of its format, a log entry ends with it, and every frame carries it.
//! Bytes of an unknown version are an error that names what they are, the
//! version found and the newest one known. They are never read as an absence
//! (rule 2 and others would break) and never taken for damage (a replica that
//! an older release can't read must not be rebuilt).

use bytes::{BufMut, Bytes};

use crate::codec::{Wire, wire};

/// A version of the formats of this crate, which is also the version of a
/// cluster: its members understand everything up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FormatVersion(pub u8);

wire!(newtype FormatVersion);

impl FormatVersion {
    /// The first release with versions, and members that don't tell theirs.
    pub const FIRST: Self = Self(1);
    /// What this release understands and may write.
    pub const NEWEST: Self = Self::FIRST;
}

impl std::fmt::Display for FormatVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Why stored or sent bytes can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// A later release wrote them.
    #[error(
        "{kind}: a later release wrote it, in format version {found}; this one understands up to {newest}"
    )]
    Version {
        kind: &'static str,
        found: FormatVersion,
        newest: FormatVersion,
    },
    /// Nobody wrote them so.
    #[error("{kind}: the bytes make no sense")]
    Nonsense { kind: &'static str },
}

/// Checks a version that was read, of something called `kind`.
pub(crate) fn check(
    kind: &'static str,
    found: FormatVersion,
    newest: FormatVersion,
) -> Result<(), Unreadable> {
    if found < FormatVersion::FIRST {
        return Err(Unreadable::Nonsense { kind });
    }
    if found > newest {
        return Err(Unreadable::Version {
            kind,
            found,
            newest,
        });
    }
    Ok(())
}

/// A value of the first version, behind that version.
pub(crate) fn seal(value: &impl Wire) -> Bytes {
    seal_as(FormatVersion::FIRST, value)
}

/// A value behind its version: the lowest one that has all that is in it.
pub(crate) fn seal_as(version: FormatVersion, value: &impl Wire) -> Bytes {
    let mut out = Vec::new();
    out.put_u8(version.0);
    value.put(&mut out);
    out.into()
}

/// The value that [`seal`] was given, of something called `kind`.
pub(crate) fn open<T: Wire>(kind: &'static str, bytes: Bytes) -> Result<T, Unreadable> {
    let value = versioned(kind, bytes)?;
    T::decode(value).ok_or(Unreadable::Nonsense { kind })
}

/// The bytes behind a version, which is checked.
fn versioned(kind: &'static str, mut bytes: Bytes) -> Result<Bytes, Unreadable> {
    let version = u8::take(&mut bytes).ok_or(Unreadable::Nonsense { kind })?;
    check(kind, FormatVersion(version), FormatVersion::NEWEST)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
