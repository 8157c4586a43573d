"""What files are taken for, by names that real packages use: ranking, order, facets and filters follow it."""

from __future__ import annotations

import pytest

from driftline.storage.documents import is_auxiliary, is_prose, is_test
from driftline.tasks.search.importance import importance

SOURCE = """
bin/release-2.sh sql/changes-1.sql news-2024.ts
src/history.c src/history.ts lib/release.py cmd/news.go org/acme/changes.java releases.rs history.js main.go
src/testify.go src/contest.py lib/latest.ts protest.rb attest/attest.go src/spectrum.py spec.go
src/index.ts lib/index.js Makefile CMakeLists.txt.in configure.ac setup.py src/readme.rs license.go src/install.sh
app/t.py t.go src/t/util.go package.json config.yaml src/dist.py lib/vendor.rb go.mod Cargo.toml Dockerfile
src/examples.rs doc/conf.py notebooks/a.ipynb data/sheet.xlsx src/a.mjs types.ts todo.py src/TODO.tsx
registry/tokio-1.24.2/src/lib.rs plugins/v1.2/load.py static/app.js
"""
PROSE = """
README README.md README.rst README.ja README.VMS lib/README-first INSTALL INSTALL.W32 LICENSE LICENSE-MIT LICENCE
COPYING GNU_COPYING AUTHORS CONTRIBUTING HACKING TODO THANKS docs/guide.mdx docs/guide.asciidoc manual.texi lib/Foo.pod
man/ls.1 man/ls.1.gz man3/Net::SSL.3pm.gz man/x509.1ssl man7/ascii.7 man3/printf.3p _sources/library/os.rst.txt
guide.adoc book/install.asc a.mkd report.PDF docs/a.html docs/test.md docs/tests.rst docs/testing.txt talk.pptx
book.epub
"""
TESTS = """
tests/a.py test/a.rb Tests/AppTests/Login.swift MyApp.Tests/LoginFacts.cs src/MyApp.UnitTests/A.cs src/test/java/A.java
src/test.rs src/tests.rs scope/test.rs app/tests.py lib/test.js t/01-basic.t t/lib/Helper.pm lib/basic.t t/t0001-init.sh
test_a.py a_test.go a.test.ts a.spec.js a_spec.rb conftest.py FooTest.java FooTests.swift FooTest.php FooSpec.hs
spec/a.rb specs/a.js __tests__/a.js e2e/a.ts testdata/a.json testing/a.go my-tests/a.py unit_test/a.cc FooSpec.scala
"""
AUXILIARY = """
CHANGELOG CHANGES CHANGES-1.2rc1
NEWS ChangeLog HISTORY.md History.markdown news.rst Changes.txt releases.md changelog.html
ChangeLog-2019 NEWS.0 debian/changelog.gz release-notes.md go.sum mod/go.sum npm-shrinkwrap.json package-lock.json
yarn.lock a.d.ts a.d.cts a.d.mts lib/a.cjs date-fns/cdn.js a.min.js a.js.map vendor/a.c node_modules/a/a.js dist/a.js
third_party/a.cc examples/a.py a_pb2.py a.pb.go a.g.dart a.svg data.csv locale/de.po html/index.html SUMMARY.md
public/plugins/pdfjs-5.2.133/build/viewer.js static/js/jquery-3.6.js assets/a/font-v6.0.1/all.css
"""


@pytest.mark.parametrize("path", SOURCE.split())
def test_source_code(path: str) -> None:
    assert (is_prose(path), is_test(path), is_auxiliary(path)) == (False, False, False)


@pytest.mark.parametrize("path", PROSE.split())
def test_prose(path: str) -> None:
    assert (is_prose(path), is_test(path), is_auxiliary(path)) == (True, False, False)


@pytest.mark.parametrize("path", TESTS.split())
def test_tests(path: str) -> None:
    assert (is_test(path), importance(path)) == (True, 2)


@pytest.mark.parametrize("path", AUXILIARY.split())
def test_files_that_repeat_others(path: str) -> None:
    assert (is_auxiliary(path), importance(path)) == (True, 3)
