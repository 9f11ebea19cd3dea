//! Enums that are words: one spelling in Rust, in YAML, in the schema and in a log line.

use std::fmt;

/// A string that is none of an enum's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord {
    /// The enum.
    pub kind: &'static str,
    /// What was found.
    pub word: String,
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no {}", self.word, self.kind)
    }
}

impl std::error::Error for UnknownWord {}

/// Defines an enum of unit variants whose names are its strings: `as_str`, `ALL`, `Display`, `FromStr`, serde and a
/// schema that lists the words.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident,)+ }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize, ::serde::Deserialize,
        )]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every word, in the order of definition.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word as it stands in YAML.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::UnknownWord;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                Self::ALL.iter().copied().find(|known| known.as_str() == word).ok_or_else(|| $crate::UnknownWord {
                    kind: stringify!($name),
                    word: word.to_owned(),
                })
            }
        }

        impl ::schemars::JsonSchema for $name {
            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                ::schemars::json_schema!({ "type": "string", "enum": [$(stringify!($variant)),+] })
            }
        }
    };
}
