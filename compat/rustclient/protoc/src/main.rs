//! A `protoc` for those who build from source and expect one to be installed:
//! it compiles the files that it is given to a set of descriptors, and takes
//! the arguments that prost-build passes, no others.

use std::env;
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut out, mut includes, mut files) = (None, Vec::new(), Vec::new());
    let mut args = env::args_os().skip(1);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--include_imports" | "--include_source_info") => {}
            Some("-o") => out = args.next(),
            Some("-I") => includes.push(PathBuf::from(args.next().ok_or("-I of what?")?)),
            Some(other) if other.starts_with('-') => {
                return Err(format!("{other} isn't known here").into());
            }
            _ => files.push(PathBuf::from(arg)),
        }
    }
    let set = protox::Compiler::new(includes)?
        .include_imports(true)
        .include_source_info(true)
        .open_files(files)?
        .encode_file_descriptor_set();
    std::fs::write(out.ok_or("no -o")?, set)?;
    Ok(())
}
