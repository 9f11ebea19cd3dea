//! Writes the generated files. The root of the repository is the first argument, or the current directory.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    for file in dalsegno_crds::generated_files() {
        let path = root.join(&file.path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        if fs::read_to_string(&path).ok().as_deref() != Some(&file.content) {
            fs::write(&path, &file.content)?;
            println!("wrote {}", file.path);
        }
    }
    Ok(())
}
