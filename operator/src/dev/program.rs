//! The program of a command line. The digest of its files takes the place of an image digest.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use dalsegno_crds::{Agent, PodTemplate, names};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::mutex::lock;

/// The program of a command line.
pub struct Program {
    command: Vec<String>,
    files: Vec<PathBuf>,
    /// The stamps of the files at the last read, and the digest.
    cached: Mutex<Option<(Vec<Stamp>, String)>>,
}

/// Modification time and length of a file. A changed file has another stamp.
type Stamp = Option<(SystemTime, u64)>;

impl Program {
    /// Finds the program and reads its files once, so that a large file delays nothing later.
    ///
    /// # Errors
    ///
    /// There is no such program, or it cannot be executed or read.
    pub fn new(command: Vec<String>) -> anyhow::Result<Self> {
        let program = command.first().context("there is no command")?;
        let program = find(program)?;
        let arguments = command.iter().skip(1).map(PathBuf::from).filter(|it| it.is_file());
        let files = std::iter::once(program).chain(arguments).collect();
        let program = Self { command, files, cached: Mutex::new(None) };
        program.digest().context("reading the program")?;
        Ok(program)
    }

    /// The agent, as a definition would describe it. If a file cannot be read, the last digest is used: an editor that saves
    /// a file may remove it for a moment.
    ///
    /// # Errors
    ///
    /// A file cannot be read, and there is no last digest.
    pub fn agent(&self) -> io::Result<Agent> {
        let template = json!({ "spec": { "containers": [{
            "name": names::WORKER_CONTAINER,
            "image": format!("process@{}", self.digest()?),
            "command": self.command,
            "terminationMessagePolicy": "File",
        }] } });
        let template = template.as_object().cloned().map(PodTemplate::from).unwrap_or_default();
        Ok(Agent { template, agent_version: None, compatible_with: Vec::new(), checkpointing: None })
    }

    /// SHA-256 of the command line, the program's file, and every file that the command line names: `sha256:…`.
    fn digest(&self) -> io::Result<String> {
        let stamps: Vec<Stamp> = self.files.iter().map(|it| stamp(it)).collect();
        let mut cached = lock(&self.cached);
        if let Some((_, digest)) = cached.as_ref().filter(|(before, _)| *before == stamps) {
            return Ok(digest.clone());
        }
        match (self.read(), cached.as_ref()) {
            (Ok(digest), _) => {
                *cached = Some((stamps, digest.clone()));
                Ok(digest)
            }
            (Err(_), Some((_, before))) => Ok(before.clone()),
            (Err(error), None) => Err(error),
        }
    }

    fn read(&self) -> io::Result<String> {
        let mut hash = Sha256::new();
        for word in &self.command {
            frame(&mut hash, word.as_bytes());
        }
        for file in &self.files {
            frame(&mut hash, &content(file)?);
        }
        let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("sha256:{hex}"))
    }
}

fn frame(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_be_bytes());
    hash.update(bytes);
}

fn content(file: &Path) -> io::Result<[u8; 32]> {
    let mut file = fs::File::open(file)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            read => hash.update(&buffer[..read]),
        }
    }
}

fn stamp(file: &Path) -> Stamp {
    let about = fs::metadata(file).ok()?;
    Some((about.modified().ok()?, about.len()))
}

/// Finds the program's file by its path, or in a folder of `PATH`.
fn find(program: &str) -> anyhow::Result<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let files: Vec<_> = if program.contains('/') {
        vec![PathBuf::from(program)]
    } else {
        std::env::split_paths(&folders).map(|folder| folder.join(program)).collect()
    };
    let may_run = |it: &&PathBuf| {
        fs::metadata(it).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    if let Some(file) = files.iter().find(may_run) {
        return Ok(file.clone());
    }
    match files.iter().find(|it| it.is_file()) {
        Some(file) => bail!(
            "{} is not executable: allow it (`chmod +x`), or start the command with its interpreter, as in `python3 {program}`",
            file.display()
        ),
        None => bail!("there is no program {program:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_of_the_command_line_is_another_version() {
        let folder = tempfile::tempdir().unwrap();
        let agent = folder.path().join("agent.sh");
        let command = |last: &str| ["sh", agent.to_str().unwrap(), last].map(str::to_owned).to_vec();
        fs::write(&agent, "exit 0").unwrap();
        let program = Program::new(command("x")).unwrap();
        let first = program.digest().unwrap();
        assert_eq!(first, Program::new(command("x")).unwrap().digest().unwrap());
        assert_ne!(first, Program::new(command("y")).unwrap().digest().unwrap());
        fs::write(&agent, "exit 12").unwrap();
        let second = program.digest().unwrap();
        assert_ne!(first, second);
        fs::remove_file(&agent).unwrap();
        assert_eq!(program.digest().unwrap(), second, "an editor is saving it");
        fs::write(&agent, "exit 0").unwrap();
        assert_eq!(program.digest().unwrap(), first);
    }

    #[test]
    fn the_error_names_a_program_that_does_not_exist() {
        let Err(error) = Program::new(vec!["no-such-program".to_owned()]) else { panic!("it exists") };
        assert!(error.to_string().contains("no-such-program"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_executable_has_its_own_error() {
        let folder = tempfile::tempdir().unwrap();
        let agent = folder.path().join("agent.py");
        fs::write(&agent, "").unwrap();
        let Err(error) = Program::new(vec![agent.display().to_string()]) else { panic!("it is executable") };
        assert!(error.to_string().contains("agent.py is not executable: allow it (`chmod +x`)"), "{error}");
    }
}
