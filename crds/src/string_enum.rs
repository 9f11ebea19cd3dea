//! `string_enum!`: enums whose variants have the same spelling in Rust, in YAML, in the schema and in log lines.

/// Defines an enum of unit variants that are spelled like their names: `as_str`, `ALL`, `Display`, `FromStr`, serde,
/// and a schema that lists the variants.
macro_rules! string_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident,)+ }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize, ::serde::Deserialize,
        )]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every variant, in the order of definition.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The variant as it is written in YAML.
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

            fn from_str(value: &str) -> Result<Self, Self::Err> {
                Self::ALL.iter().copied().find(|known| known.as_str() == value).ok_or_else(|| $crate::UnknownVariant {
                    kind: stringify!($name),
                    text: value.to_owned(),
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
