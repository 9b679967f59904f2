//! Makes Rust of the `.proto` files. Needs no `protoc`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use prost::Message;
use prost_types::FileDescriptorSet;

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

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut files = protox::compile(FILES, ["proto"])?;
    // The set that is kept has the names of the wire.
    fs::write(out("descriptors.bin")?, files.encode_to_vec())?;
    rename(&mut files);
    tonic_prost_build::configure()
        .bytes(".")
        .build_transport(false)
        .compile_fds(files)?;
    Ok(())
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
