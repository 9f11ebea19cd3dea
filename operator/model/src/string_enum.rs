//! Enums whose variants are stored as strings, in databases and in APIs.

/// A string that is not the name of any variant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {kind} {text:?}")]
pub struct UnknownVariant {
    /// Name of the enum.
    pub kind: &'static str,
    /// The string.
    pub text: String,
}

/// Defines an enum without data. Serde, `Display` and `FromStr` all use the name of the variant.
macro_rules! string_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize, ::serde::Deserialize)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every variant, in the order of definition.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The variant's name, as it is stored.
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
            type Err = $crate::UnknownVariant;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().copied().find(|known| known.as_str() == text);
                found.ok_or_else(|| $crate::UnknownVariant { kind: stringify!($name), text: text.to_owned() })
            }
        }
    };
}
pub(crate) use string_enum;
