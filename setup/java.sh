#!/bin/sh
# Finds Java 17 or later, else installs it where root and apt allow, else says what to do.
set -eu

good() {
    "$1" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | {
        read -r version || exit 1
        [ "${version:-0}" -ge 17 ]
    }
}

for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java /usr/lib/jvm/*/bin/java; do
    if command -v "$java" >/dev/null 2>&1 && good "$java"; then
        exit 0
    fi
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing Java (openjdk-17-jre-headless) with apt-get (once)"
    if apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq openjdk-17-jre-headless >/dev/null; then
        exit 0
    fi
    if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq default-jre-headless >/dev/null; then
        exit 0
    fi
fi
echo "Spark needs Java 17 or later; install one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME." >&2
exit 1
