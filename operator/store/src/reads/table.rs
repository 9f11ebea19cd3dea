//! A table's row as a struct, from one list of its columns.

/// Makes the struct, and what reads it and tells its columns apart. `fixed` columns change seldom: what saves a whole row
/// leaves them.
macro_rules! table {
    (
        $(#[$doc:meta])*
        $name:ident in $table:literal
        fixed { $($fixed:ident: $fixed_type:ty,)+ }
        moving { $($moving:ident: $moving_type:ty,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct $name {
            $(pub $fixed: $fixed_type,)+
            $(pub $moving: $moving_type,)+
        }

        impl $name {
            /// The table.
            pub const TABLE: &'static str = $table;

            /// All columns.
            pub const COLUMNS: &'static [&'static str] =
                &[$(stringify!($fixed),)+ $(stringify!($moving),)+];

            /// The row, all columns of it.
            pub fn read(row: &impl $crate::reads::Columns) -> $crate::fault::Work<Self> {
                use $crate::reads::Column;
                Ok(Self {
                    $($fixed: Column::read(row, stringify!($fixed))?,)+
                    $($moving: Column::read(row, stringify!($moving))?,)+
                })
            }

            /// All columns, as they stand.
            pub fn assignments(&self) -> Vec<$crate::reads::Assignment> {
                use $crate::reads::Column;
                let fixed = [$((stringify!($fixed), Column::value(&self.$fixed)),)+];
                fixed.into_iter().chain(self.moving()).collect()
            }

            /// The moving columns, as they stand.
            pub fn moving(&self) -> Vec<$crate::reads::Assignment> {
                use $crate::reads::Column;
                vec![$((stringify!($moving), Column::value(&self.$moving)),)+]
            }

            /// The columns that differ from the row before, as they stand now.
            pub fn changes(&self, before: &Self) -> Vec<$crate::reads::Assignment> {
                use $crate::reads::Column;
                let mut changes = Vec::new();
                $(if self.$fixed != before.$fixed {
                    changes.push((stringify!($fixed), Column::value(&self.$fixed)));
                })+
                $(if self.$moving != before.$moving {
                    changes.push((stringify!($moving), Column::value(&self.$moving)));
                })+
                changes
            }
        }
    };
}
pub(super) use table;
