//! The reduction operators that MPI predefines (MPI-4.1 §6.9.2).

/// Declares the operators once: the enum, their names, and, by their order, their numbers. The order
/// must not change, as programs in JAX's persistent cache contain the numbers.
macro_rules! predefined {
    ($($operator:ident $name:literal,)*) => {
        /// A predefined operator. Its index in this list is its number in compiled programs; operators
        /// that users make have the numbers after these.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum PredefinedOp {
            $(
                #[doc = concat!("`MPI_", $name, "`")]
                $operator,
            )*
        }

        impl PredefinedOp {
            /// All operators, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$operator),*];

            /// MPI's name of the operator, without the prefix.
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
    /// The number of the operator in compiled programs.
    pub const fn number(self) -> i64 {
        self as i64
    }

    /// The predefined operator with this number, or `None` for a user's operator.
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
