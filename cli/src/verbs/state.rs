//! `state`: the channels of a run's state.

use dalsegno_protocol::{Channel, Payload, State, StateResponse};

use crate::args::StateArgs;
use crate::doors::{Document, Door};
use crate::failure::{Exit, Failure, Result};
use crate::output::{Output, Style, escape};
use crate::session::Session;

/// Shows a state.
pub async fn run(session: &Session, args: &StateArgs, output: &mut Output) -> Result {
    let door = Door::open(session).await?;
    let document = Document::new(&args.run, "state").with_some("turn", args.turn);
    let StateResponse { mut state } = door.get(&document).await?;
    if let Some(name) = &args.channel {
        let names: Vec<_> = state.keys().cloned().collect();
        let channel = state.remove(name).ok_or_else(|| {
            Failure::new(
                Exit::NotFound,
                format!("the state has no channel {name:?}"),
                format!("choose one of: {}", names.join(", ")),
            )
        })?;
        state = State::from([(name.clone(), channel)]);
    }
    if output.format.is_document() {
        return output.document(&StateResponse { state });
    }
    render(&state, output);
    Ok(())
}

/// Prints every channel.
pub fn render(state: &State, output: &mut Output) {
    if state.is_empty() {
        output.print("The state is empty.");
    }
    for (name, channel) in state {
        match channel {
            Channel::Value(value) => {
                output.print_styled(Style::Bold, &escape::line(name));
                output.print(&format!("  {}", escape::line(&text(value))));
            }
            Channel::List(items) => {
                let count = dalsegno_core::text::counted(items.len(), "item", "items");
                output.print_styled(Style::Bold, &format!("{} ({count})", escape::line(name)));
                items.iter().for_each(|item| output.print(&format!("  - {}", escape::line(&text(item)))));
            }
        }
    }
}

fn text(payload: &Payload) -> String {
    match payload {
        Payload::Json(json) => json.get().to_owned(),
        Payload::Bytes { media_type, base64 } => {
            format!("{media_type}, {} characters of base64", base64.len())
        }
    }
}
