//! How messages become bytes and come from them.
//!
//! Kept true: an open call holds small buffers, which grow to the size of the
//! message under way. (tonic's own codec holds 16 KiB for each open call.)

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Most small messages fit without another allocation.
const FIRST_BYTES: usize = 128;
/// Messages that are ready together are sent together up to this many bytes.
const COALESCED_BYTES_MAX: usize = 32 << 10;

fn buffers() -> BufferSettings {
    BufferSettings::new(FIRST_BYTES, COALESCED_BYTES_MAX)
}

/// Protobuf, in buffers of the size of a message.
#[derive(Debug)]
pub(crate) struct ExactCodec<Encode, Decode>(PhantomData<(Encode, Decode)>);

impl<Encode, Decode> Default for ExactCodec<Encode, Decode> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<Encode, Decode> Codec for ExactCodec<Encode, Decode>
where
    Encode: Message + Send + 'static,
    Decode: Message + Default + Send + 'static,
{
    type Encode = Encode;
    type Decode = Decode;
    type Encoder = ExactEncoder<Encode>;
    type Decoder = ExactDecoder<Decode>;

    fn encoder(&mut self) -> Self::Encoder {
        ExactEncoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        ExactDecoder(PhantomData)
    }
}

/// The half that encodes.
#[derive(Debug)]
pub(crate) struct ExactEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for ExactEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.encoded_len());
        item.encode_raw(buffer);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

/// The half that decodes.
#[derive(Debug)]
pub(crate) struct ExactDecoder<T>(PhantomData<T>);

impl<T: Message + Default> Decoder for ExactDecoder<T> {
    type Item = T;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<T>, Status> {
        match T::decode(buffer) {
            Ok(item) => Ok(Some(item)),
            Err(error) => Err(Status::internal(error.to_string())),
        }
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}
