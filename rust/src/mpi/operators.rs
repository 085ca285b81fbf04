//! The reduction operators that MPI predefines (MPI-4.1 §6.9.2).

/// Declares the operators once: the enum, their names, and their numbers by their order. It stays,
/// as JAX's persistent cache has programs with the numbers.
macro_rules! predefined {
    ($($operator:ident $name:literal,)*) => {
        /// An operator of MPI's own, known to compiled programs by its index in this list. Those
        /// that users make have the numbers after these.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum PredefinedOp {
            $(
                #[doc = concat!("`MPI_", $name, "`")]
                $operator,
            )*
        }

        impl PredefinedOp {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$operator),*];

            /// MPI's name, without the prefix.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$operator => $name,)*
                }
            }
        }
    };
}

predefined! {
    Sum "SUM",
    Prod "PROD",
    Max "MAX",
    Min "MIN",
    Land "LAND",
    Band "BAND",
    Lor "LOR",
    Bor "BOR",
    Lxor "LXOR",
    Bxor "BXOR",
    Maxloc "MAXLOC",
    Minloc "MINLOC",
    Replace "REPLACE",
    NoOp "NO_OP",
}

impl PredefinedOp {
    /// The number by which compiled programs know the operator.
    pub const fn number(self) -> i64 {
        self as i64
    }

    /// The operator with this number, unless it is one that a user made.
    pub fn from_number(op_number: i64) -> Option<Self> {
        Self::ALL.get(usize::try_from(op_number).ok()?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_for_operators() {
        for operator in PredefinedOp::ALL {
            assert_eq!(
                PredefinedOp::from_number(operator.number()),
                Some(*operator)
            );
        }
        let first_of_users = PredefinedOp::ALL.len() as i64;
        for op_number in [-1, first_of_users, i64::MIN, i64::MAX] {
            assert_eq!(PredefinedOp::from_number(op_number), None, "{op_number}");
        }
    }
}
