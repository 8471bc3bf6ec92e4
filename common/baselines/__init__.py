"""Methods of other papers that several of ours compare with."""
