"""The only home of SQL: one file per store and dialect, and the migrations beside them."""
