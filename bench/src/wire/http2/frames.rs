//! The frames of HTTP/2: nine bytes of head, then the payload.
//!
//! Kept true: what is cut off or too long is an error, never a panic.

use bytes::{Buf, Bytes, BytesMut};

use super::{FRAME_BYTES_MAX, broken};
use crate::wire::failure::Failure;

const HEAD_BYTES: usize = 9;
/// The highest bit of a stream's number means nothing.
pub(super) const ID_MASK: u32 = 0x7fff_ffff;

/// Bits of a frame's flags.
pub(super) mod flag {
    pub(in super::super) const ACK: u8 = 1;
    pub(in super::super) const END_STREAM: u8 = 1;
    pub(in super::super) const END_HEADERS: u8 = 4;
    pub(in super::super) const PADDED: u8 = 8;
    pub(in super::super) const PRIORITY: u8 = 32;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data = 0,
    Headers = 1,
    Reset = 3,
    Settings = 4,
    PushPromise = 5,
    Ping = 6,
    GoAway = 7,
    WindowUpdate = 8,
    Continuation = 9,
    /// Others are left alone.
    Other = 255,
}

impl Kind {
    fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Data,
            1 => Self::Headers,
            3 => Self::Reset,
            4 => Self::Settings,
            5 => Self::PushPromise,
            6 => Self::Ping,
            7 => Self::GoAway,
            8 => Self::WindowUpdate,
            9 => Self::Continuation,
            _ => Self::Other,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    HeaderTableSize = 1,
    EnablePush = 2,
    MaxConcurrentStreams = 3,
    InitialWindowSize = 4,
    Other = 255,
}

pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) flags: u8,
    pub(super) id: u32,
    pub(super) payload: Bytes,
}

impl Frame {
    /// What is in a frame besides padding and priorities.
    pub(super) fn content(mut self: Frame) -> Result<Bytes, Failure> {
        let cut = || broken("a frame is too short");
        let mut padding = 0;
        if self.flags & flag::PADDED != 0 {
            padding = usize::from(self.payload.try_get_u8().map_err(|_| cut())?);
        }
        if self.kind == Kind::Headers && self.flags & flag::PRIORITY != 0 {
            let after = self.payload.len().checked_sub(5).ok_or_else(cut)?;
            self.payload.advance(self.payload.len() - after);
        }
        let bytes = self.payload.len().checked_sub(padding).ok_or_else(cut)?;
        self.payload.truncate(bytes);
        Ok(self.payload)
    }

    /// The number that stands at a place in the payload.
    pub(super) fn number(&self, at: usize) -> Result<u32, Failure> {
        let bytes = self.payload.get(at..at + 4);
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or_else(|| broken("a frame is too short"))?;
        Ok(u32::from_be_bytes(bytes))
    }

    pub(super) fn settings(&self) -> Result<Vec<(Setting, u32)>, Failure> {
        let (settings, rest) = self.payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(broken("settings are cut off"));
        }
        let setting = |bytes: &[u8; 6]| {
            let [_, name, a, b, c, d] = *bytes;
            let name = match (bytes[0], name) {
                (0, 1) => Setting::HeaderTableSize,
                (0, 2) => Setting::EnablePush,
                (0, 3) => Setting::MaxConcurrentStreams,
                (0, 4) => Setting::InitialWindowSize,
                _ => Setting::Other,
            };
            (name, u32::from_be_bytes([a, b, c, d]))
        };
        Ok(settings.iter().map(setting).collect())
    }
}

/// The next frame, if it is there as a whole.
pub(super) fn take_frame(input: &mut BytesMut) -> Result<Option<Frame>, Failure> {
    let &[a, b, c, kind, flags, d, e, f, g, ..] = &input[..] else {
        return Ok(None);
    };
    let bytes = u32::from_be_bytes([0, a, b, c]) as usize;
    if bytes > FRAME_BYTES_MAX {
        return Err(broken("a frame is too long, or this isn't HTTP/2"));
    }
    if input.len() < HEAD_BYTES + bytes {
        return Ok(None);
    }
    input.advance(HEAD_BYTES);
    Ok(Some(Frame {
        kind: Kind::of(kind),
        flags,
        id: u32::from_be_bytes([d, e, f, g]) & ID_MASK,
        payload: input.split_to(bytes).freeze(),
    }))
}

/// Writes what comes before a payload of so many bytes.
pub(super) fn write_head(out: &mut Vec<u8>, bytes: usize, kind: Kind, flags: u8, id: u32) {
    let [_, a, b, c] = (bytes as u32).to_be_bytes();
    let [d, e, f, g] = id.to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind as u8, flags, d, e, f, g]);
}

/// Everything behind the head at `head` is its payload.
pub(super) fn set_length(out: &mut [u8], head: usize) {
    let bytes = out.len() - head - HEAD_BYTES;
    let [_, a, b, c] = (bytes as u32).to_be_bytes();
    out[head..head + 3].copy_from_slice(&[a, b, c]);
}

pub(super) fn write_settings(out: &mut Vec<u8>, settings: &[(Setting, u32)]) {
    write_head(out, 6 * settings.len(), Kind::Settings, 0, 0);
    for (setting, value) in settings {
        out.extend_from_slice(&(*setting as u16).to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_when_they_are_whole() {
        let mut out = Vec::new();
        write_head(&mut out, 3, Kind::Data, flag::END_STREAM, 5);
        out.extend_from_slice(b"abc");
        for cut in 0..out.len() {
            let taken = take_frame(&mut BytesMut::from(&out[..cut]));
            assert!(taken.unwrap().is_none(), "{cut}");
        }
        let mut input = BytesMut::from(&out[..]);
        let frame = take_frame(&mut input).unwrap().unwrap();
        assert_eq!((frame.kind, frame.id, input.len()), (Kind::Data, 5, 0));
        assert_eq!(frame.content().unwrap(), "abc");
        let long = take_frame(&mut BytesMut::from(&b"HTTP/1.1 400 Bad"[..]));
        assert!(long.is_err());
    }

    #[test]
    fn padding_and_priorities_are_left_out_and_lies_about_them_found() {
        let frame = |flags, payload: &'static [u8]| Frame {
            kind: Kind::Headers,
            flags,
            id: 1,
            payload: Bytes::from_static(payload),
        };
        let both = flag::PADDED | flag::PRIORITY;
        let content = frame(both, &[2, 0, 0, 0, 0, 0, b'x', 0, 0]).content();
        assert_eq!(content.unwrap(), "x");
        for (flags, payload) in [
            (flag::PADDED, &[][..]),
            (flag::PADDED, &[2, 0]),
            (flag::PRIORITY, &[0, 0, 0, 0]),
        ] {
            assert!(frame(flags, payload).content().is_err());
        }
    }
}
