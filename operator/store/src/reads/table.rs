//! A table's row as a struct, from one list of its columns.

/// Makes the struct, and what reads it and tells its columns apart.
macro_rules! table {
    (
        $(#[$doc:meta])*
        $name:ident in $table:literal { $($column:ident: $type:ty,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct $name {
            $(pub $column: $type,)+
        }

        impl $name {
            /// The table.
            pub const TABLE: &'static str = $table;

            /// All columns.
            pub const COLUMNS: &'static [&'static str] = &[$(stringify!($column),)+];

            /// The row, all columns of it.
            pub fn read(row: &impl $crate::reads::Columns) -> $crate::fault::Work<Self> {
                use $crate::reads::Column;
                Ok(Self { $($column: Column::read(row, stringify!($column))?,)+ })
            }

            /// All columns, as they stand.
            pub fn assignments(&self) -> Vec<$crate::reads::Assignment> {
                use $crate::reads::Column;
                let values = [$(Column::value(&self.$column),)+];
                Self::COLUMNS.iter().copied().zip(values).collect()
            }

            /// The columns that differ from the row before, as they stand now.
            pub fn changes(&self, before: &Self) -> Vec<$crate::reads::Assignment> {
                use $crate::reads::Column;
                let mut changes = Vec::new();
                $(if self.$column != before.$column {
                    changes.push((stringify!($column), Column::value(&self.$column)));
                })+
                changes
            }
        }
    };
}
pub(super) use table;
