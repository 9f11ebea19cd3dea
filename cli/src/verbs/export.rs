//! `export`: a run as a signed bundle.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

use crate::args::ExportArgs;
use crate::doors::{Document, Door};
use crate::failure::{Exit, Failure, Result};
use crate::output::{Output, print_error};
use crate::session::Session;

/// Writes the bundle of a run to a new file that only its owner can read, or to the standard output.
pub async fn run(session: &Session, args: &ExportArgs, output: &mut Output) -> Result {
    let door = Door::open(session).await?;
    let document = Document::new(&args.run, "export");
    let Some(path) = &args.file else {
        return door
            .stream(&document, |bytes| {
                output.write(bytes);
                Ok(())
            })
            .await;
    };
    let failed = |error: &std::io::Error| Failure::of_file("writing", path, error);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(
        |error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Failure::new(
                Exit::Refused,
                format!("the file {} exists", path.display()),
                "choose another name, or remove the file",
            ),
            _ => failed(&error),
        },
    )?;
    let streamed =
        door.stream(&document, |bytes| file.write_all(bytes).map_err(|error| failed(&error))).await;
    if let Err(failure) = streamed.and_then(|()| file.sync_all().map_err(|error| failed(&error))) {
        // An incomplete bundle proves nothing, and the next try could not create the file.
        if let Err(error) = std::fs::remove_file(path) {
            print_error(&format!("{} is incomplete, and cannot be removed: {error}", path.display()));
        }
        return Err(failure);
    }
    output.print(&format!(
        "The bundle of {} is in {1}.\nVerify it:  kubectl dalsegno verify {1}",
        args.run,
        path.display()
    ));
    Ok(())
}
