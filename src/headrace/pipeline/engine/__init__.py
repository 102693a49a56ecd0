"""The part of the pipeline that runs on Spark: sessions, tables, queries."""
