//! What a verb prints after it has changed an object.

use kube::{Resource, ResourceExt as _};
use serde::Serialize;

use super::{Format, Output};
use crate::failure::Result;

/// Prints the text for people, or the object as it is after the change.
pub fn print_changed<K>(output: &mut Output, object: &K, text: &str) -> Result
where
    K: Resource<DynamicType = ()> + Serialize,
{
    match output.format {
        Format::Json | Format::Yaml => output.document(object),
        Format::Name => {
            let kind = K::kind(&()).to_lowercase();
            output.print(&format!("{kind}.{}/{}", K::group(&()), object.name_any()));
            Ok(())
        }
        Format::Text | Format::Wide => {
            output.print(text);
            Ok(())
        }
    }
}
