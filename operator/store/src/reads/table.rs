//! Makes a struct for a table's row from one list of columns.

/// Makes the struct, and the methods that read its columns.
macro_rules! row {
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

            /// All columns as a list of SQL, each of this table or alias.
            pub fn columns_of(table: &str) -> String {
                Self::COLUMNS.iter().map(|column| format!("{table}.{column}")).collect::<Vec<_>>().join(", ")
            }

            /// Reads the row. It must have all columns.
            pub fn read(row: &impl $crate::reads::Columns) -> $crate::db_error::DbResult<Self> {
                use $crate::reads::Column;
                Ok(Self { $($column: Column::read(row, stringify!($column))?,)+ })
            }

            /// All columns with their values.
            pub fn assignments(&self) -> Vec<$crate::reads::Assignment> {
                use $crate::reads::Column;
                let values = [$(Column::value(&self.$column),)+];
                Self::COLUMNS.iter().copied().zip(values).collect()
            }
        }
    };
}
pub(super) use row;

/// Makes the struct, and the methods that read and compare its columns.
macro_rules! table {
    (
        $(#[$doc:meta])*
        $name:ident in $table:literal { $($column:ident: $type:ty,)+ }
    ) => {
        $crate::reads::table::row! {
            $(#[$doc])*
            $name in $table { $($column: $type,)+ }
        }

        impl $name {
            /// The columns that differ from `before`, with their new values.
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
