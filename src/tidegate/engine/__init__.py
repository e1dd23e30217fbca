"""Tables on Spark and Delta: looks without a JVM, sessions, views, and the loads of a block."""
