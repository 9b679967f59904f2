//! Makes Rust of the `.proto` files. Needs no `protoc`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use prost::Message;
use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;

/// What these import is found by itself.
const FILES: [&str; 10] = [
    "etcdserverpb/auth.proto",
    "etcdserverpb/cluster.proto",
    "etcdserverpb/kv.proto",
    "etcdserverpb/lease.proto",
    "etcdserverpb/maintenance.proto",
    "etcdserverpb/watch.proto",
    "health.proto",
    "pontoonpb.proto",
    "v3electionpb.proto",
    "v3lockpb.proto",
];

/// Fields whose name would become unreadable in Rust (`peer_ur_ls`).
const RENAMED: [(&str, &str); 2] = [("peerURLs", "peer_urls"), ("clientURLs", "client_urls")];

/// How messages become bytes.
const CODEC: &str = "crate::codec::ExactCodec";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut files = protox::compile(FILES, ["proto"])?;
    // The set that is kept has the names of the wire.
    fs::write(out("descriptors.bin")?, files.encode_to_vec())?;
    rename(&mut files);
    let encoded = with_encoded_events(&files);
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path(CODEC)
        .build_transport(false)
        .compile_fds(files)?;
    let dir = out("encoded")?;
    fs::create_dir_all(&dir)?;
    let mut config = tonic_prost_build::configure()
        .bytes(".")
        .codec_path(CODEC)
        .build_client(false)
        .build_transport(false)
        .out_dir(dir);
    for message in ["ResponseHeader", "WatchRequest"] {
        let same = format!("crate::etcdserverpb::{message}");
        config = config.extern_path(format!(".etcdserverpb.{message}"), same);
    }
    config.compile_fds(encoded)?;
    Ok(())
}

/// The Watch service once more, for a server that has its events as bytes: on the
/// wire that is the same.
fn with_encoded_events(files: &FileDescriptorSet) -> FileDescriptorSet {
    let kept = ["ResponseHeader", "WatchResponse"];
    let mut files = files.clone();
    files.file.retain(|file| file.package() == "etcdserverpb");
    for file in &mut files.file {
        // Where things stand in the file, which isn't true any more.
        file.source_code_info = None;
        file.enum_type.clear();
        file.message_type
            .retain(|message| kept.contains(&message.name()));
        file.service.retain(|service| service.name() == "Watch");
        let fields = file.message_type.iter_mut();
        for field in fields.flat_map(|message| &mut message.field) {
            if field.name() == "events" {
                field.set_type(Type::Bytes);
                field.type_name = None;
            }
        }
    }
    files
}

fn out(name: &str) -> Result<PathBuf, env::VarError> {
    Ok(Path::new(&env::var("OUT_DIR")?).join(name))
}

fn rename(files: &mut FileDescriptorSet) {
    let messages = files
        .file
        .iter_mut()
        .flat_map(|file| &mut file.message_type);
    for field in messages.flat_map(|message| &mut message.field) {
        for (wire, rust) in RENAMED {
            if field.name() == wire {
                field.name = Some(rust.to_owned());
            }
        }
    }
}
