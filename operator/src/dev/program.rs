//! Which program a command line is: what stands for the digest of an image.

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

use crate::sync::lock;

/// A command line.
pub struct Program {
    command: Vec<String>,
    files: Vec<PathBuf>,
    /// The files as they were when they were last read, and the digest that came of it.
    known: Mutex<Option<(Vec<Stamp>, String)>>,
}

/// Whether a file may have changed: its time and its length.
type Stamp = Option<(SystemTime, u64)>;

impl Program {
    /// Of this command line. Reads its files, so that a large one delays nothing later.
    ///
    /// # Errors
    ///
    /// There is no such program, or it cannot be executed or read.
    pub fn new(command: Vec<String>) -> anyhow::Result<Self> {
        let program = command.first().context("there is no command")?;
        let program = find(program)?;
        let named = command.iter().skip(1).map(PathBuf::from).filter(|it| it.is_file());
        let files = std::iter::once(program).chain(named).collect();
        let program = Self { command, files, known: Mutex::new(None) };
        program.digest().context("reading the program")?;
        Ok(program)
    }

    /// What a definition would say of it. A file that cannot be read is as it was: an editor that saves it may have taken it
    /// away for a moment.
    ///
    /// # Errors
    ///
    /// One of its files cannot be read, and none has been before.
    pub fn agent(&self) -> io::Result<Agent> {
        let template = json!({ "spec": { "containers": [{
            "name": names::WORKER_CONTAINER,
            "image": format!("process@{}", self.digest()?),
            "command": self.command,
            "terminationMessagePolicy": "File",
        }] } });
        let template = template.as_object().cloned().map(PodTemplate::from).unwrap_or_default();
        Ok(Agent { template, agent_version: None, compatible_with: Vec::new() })
    }

    /// `sha256:…` of the command line, of the program's file, and of every file that the command line names.
    fn digest(&self) -> io::Result<String> {
        let stamps: Vec<Stamp> = self.files.iter().map(|it| stamp(it)).collect();
        let mut known = lock(&self.known);
        if let Some((_, digest)) = known.as_ref().filter(|(before, _)| *before == stamps) {
            return Ok(digest.clone());
        }
        match (self.read(), known.as_ref()) {
            (Ok(digest), _) => {
                *known = Some((stamps, digest.clone()));
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

/// The program's file: by its path, or in one of the folders of `PATH`.
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
            "{} is not executable: allow it (`chmod +x`), or begin the command with what runs it, as in `python3 {program}`",
            file.display()
        ),
        None => bail!("there is no program {program:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_content_of_a_file_that_the_command_names_is_another_version() {
        let folder = tempfile::tempdir().unwrap();
        let agent = folder.path().join("agent.sh");
        let words = |last: &str| ["sh", agent.to_str().unwrap(), last].map(str::to_owned).to_vec();
        fs::write(&agent, "exit 0").unwrap();
        let program = Program::new(words("x")).unwrap();
        let first = program.digest().unwrap();
        assert_eq!(first, Program::new(words("x")).unwrap().digest().unwrap());
        assert_ne!(first, Program::new(words("y")).unwrap().digest().unwrap());
        fs::write(&agent, "exit 12").unwrap();
        let second = program.digest().unwrap();
        assert_ne!(first, second);
        fs::remove_file(&agent).unwrap();
        assert_eq!(program.digest().unwrap(), second, "it is being saved");
        fs::write(&agent, "exit 0").unwrap();
        assert_eq!(program.digest().unwrap(), first);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let Err(error) = Program::new(vec!["no-such-program".to_owned()]) else { panic!("it is there") };
        assert!(error.to_string().contains("no-such-program"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_executable_is_told_from_one_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let agent = folder.path().join("agent.py");
        fs::write(&agent, "").unwrap();
        let Err(error) = Program::new(vec![agent.display().to_string()]) else { panic!("it can be run") };
        assert!(error.to_string().contains("agent.py is not executable: allow it (`chmod +x`)"), "{error}");
    }
}
