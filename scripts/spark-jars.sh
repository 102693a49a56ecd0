#!/bin/sh
# Downloads the Spark connector jars (Kafka source and sink, Delta Lake) that `headrace demo` and the pipeline's tests
# use, into .build/jars/spark of the project or the directory given. Needs Java 17 or newer and Maven 3.
# Without these jars Spark resolves the same artifacts itself at its first start (spark.jars.packages).
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
pom="$root/src/headrace/pipeline/jars.pom.xml"
target=${1:-"$root/.build/jars/spark"}

# The stamp is a copy of the pom: a changed version downloads again, an unchanged one costs nothing.
if [ -f "$target/.pom.xml" ] && cmp -s "$pom" "$target/.pom.xml"; then
    echo "Spark connector jars: up to date in $target"
    exit 0
fi
if ! command -v mvn >/dev/null 2>&1; then
    echo "Spark connector jars need Maven: 'apt-get install maven' or 'brew install maven'." >&2
    echo "Without it Spark downloads them itself when the pipeline first starts." >&2
    exit 1
fi
rm -rf "$target.new"
mvn --batch-mode --quiet --file "$pom" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$target.new"
cp "$pom" "$target.new/.pom.xml"
rm -rf "$target"
mkdir -p "$(dirname "$target")"
mv "$target.new" "$target"
echo "Spark connector jars: $(find "$target" -name '*.jar' | wc -l | tr -d ' ') in $target"
