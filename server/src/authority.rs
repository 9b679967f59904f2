//! Old clients of etcd's name the server by a URL where HTTP/2 wants a host
//! and a port (`:authority: http://127.0.0.1:2379`). Their library takes that,
//! ours refuses the call; so the URL is made a name that both take.
//!
//! Kept true: what is written in place of the scheme's end has as many bits as
//! what stood there, so frames keep their length and the compression's table
//! its size. Nobody reads the name.

/// A literal `:authority` that the table is to remember.
const AUTHORITY: u8 = 0x41;
/// Says, with a text's length, that the text is compressed.
const COMPRESSED: u8 = 0x80;

/// How a URL begins in Huffman's code, which those clients always use and no
/// plain text looks like, and what takes the place of that: `B--` of `://`. The
/// last byte also has bits of what follows, which the mask leaves alone.
const BEGINNINGS: [(&[u8], u8, &[u8]); 2] = [
    // http://
    (
        &[0x9d, 0x29, 0xae, 0xe3, 0x0c],
        0xff,
        &[0x9d, 0x29, 0xae, 0xea, 0xcb],
    ),
    // https://
    (
        &[0x9d, 0x29, 0xad, 0x17, 0x18, 0x60],
        0xfc,
        &[0x9d, 0x29, 0xad, 0x17, 0x56, 0x58],
    ),
];

/// Repairs a block of headers, or as much of it as there is.
pub(crate) fn repair(block: &mut [u8]) {
    let mut from = 0;
    while let Some(at) = block[from..].iter().position(|byte| *byte == AUTHORITY) {
        from += at + 1;
        let Some((length, text)) = block[from..].split_first_mut() else {
            return;
        };
        for (begins, mask, instead) in BEGINNINGS {
            if *length & COMPRESSED != 0 && begins_with(text, begins, mask) {
                let last = begins.len() - 1;
                let beyond = text[last] & !mask;
                text[..=last].copy_from_slice(instead);
                text[last] |= beyond;
                return;
            }
        }
    }
}

fn begins_with(text: &[u8], begins: &[u8], mask: u8) -> bool {
    let last = begins.len() - 1;
    text.len() > last && text[..last] == begins[..last] && text[last] & mask == begins[last]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `:authority` with this text, between other headers, as it is repaired.
    fn repaired(length: u8, text: &[u8]) -> Vec<u8> {
        let mut block = vec![0x83, 0x86, AUTHORITY, length];
        block.extend(text);
        block.push(0x88);
        repair(&mut block);
        assert_eq!(block[..4], [0x83, 0x86, AUTHORITY, length]);
        assert_eq!(block.pop(), Some(0x88));
        block.split_off(4)
    }

    /// `http://a:2379`, and what becomes of it.
    const HTTP: [u8; 10] = [0x9d, 0x29, 0xae, 0xe3, 0x0c, 0x0e, 0xe0, 0x84, 0xcb, 0x9f];
    /// RFC 7541, C.6.1 has this text: `https://www.example.com`.
    const HTTPS: [u8; 17] = [
        0x9d, 0x29, 0xad, 0x17, 0x18, 0x63, 0xc7, 0x8f, 0x0b, 0x97, 0xc8, 0xe9, 0xae, 0x82, 0xae,
        0x43, 0xd3,
    ];

    #[test]
    fn a_url_becomes_a_name_of_the_same_length() {
        let found = repaired(0x8a, &HTTP);
        assert_eq!(found[..5], [0x9d, 0x29, 0xae, 0xea, 0xcb]);
        assert_eq!(found[5..], HTTP[5..]);
        let found = repaired(0x91, &HTTPS);
        assert_eq!(found[..6], [0x9d, 0x29, 0xad, 0x17, 0x56, 0x5b]);
        assert_eq!(found[6..], HTTPS[6..]);
    }

    #[test]
    fn anything_else_stays_as_it_is() {
        for text in [&b"127.0.0.1:2379"[..], b"http://a", b"A/http://a", &HTTP] {
            assert_eq!(repaired(text.len() as u8, text), text);
        }
        // Cut off.
        for cut in [&b"A"[..], b"A\x87", b"A\x87\x9d\x29\xae\xe3", b""] {
            let mut block = cut.to_vec();
            repair(&mut block);
            assert_eq!(block, cut);
        }
    }
}
