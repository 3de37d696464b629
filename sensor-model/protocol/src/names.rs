//! Enums whose values have names.
//!
//! In: one list of variants with their names. Out: an enum with this order and these names, in JSON too.

/// Declares an enum with the name that each variant has in JSON, metrics and messages. The crate that uses it depends on `serde` and
/// `schemars`.
#[macro_export]
macro_rules! names {
    (
        $(#[$about:meta])*
        pub enum $Enum:ident {
            $( $(#[$doc:meta])* $Variant:ident = $name:literal, )+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $Enum {
            $( $(#[$doc])* #[serde(rename = $name)] $Variant, )+
        }

        impl $Enum {
            /// Every value, in the order of the declaration.
            pub const ALL: &'static [Self] = &[$(Self::$Variant),+];

            /// Its name in JSON, metrics and messages.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name),+
                }
            }
        }
    };
}
