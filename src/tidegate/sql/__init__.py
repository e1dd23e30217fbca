"""SQL of views and statements, read and edited without a JVM: pure, for every kind of flow."""
