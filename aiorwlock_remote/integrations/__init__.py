"""Ways in from other libraries; each needs the library it is named after."""
