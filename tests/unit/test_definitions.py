"""Definitions in code and prose, found by grammars, headings and patterns."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

import driftline
from driftline.storage.lines.outline import KINDS, Definition, decode, encode, innermost
from driftline.tasks.definitions.find_definitions import (
    _SYNTAXES,
    BY_EXTENSION,
    HEADINGS,
    MAX_PARSED_CHARACTERS,
    begins_definition,
    by_patterns,
    definitions,
    loaded,
)

CODE = {
    "store.py": (
        """
        import os

        # Keeps sessions.
        @dataclass(frozen=True)
        class SessionStore:
            def load(self, key):
                def decode(raw):
                    return raw
                return decode(self.raw[key])

            async def save(self, key): ...

        text = "def fake(): pass"
        """,
        [
            ("class", "SessionStore", 2, 10),
            ("method", "SessionStore.load", 5, 8),
            ("function", "SessionStore.load.decode", 6, 7),
            ("method", "SessionStore.save", 10, 10),
        ],
    ),
    "app.js": (
        """
        /** Answers requests. */
        const handle = async (request) => {
          return request;
        };
        class Router extends Base {
          #routes = new Map();
          add(path, target) { return this; }
          onError = (error) => { throw error; };
        }
        Router.prototype.match = function (path) { return path; };
        module.exports.listen = function () {};
        const options = { retry: () => 3 };
        """,
        [
            ("function", "handle", 0, 3),
            ("class", "Router", 4, 8),
            ("method", "Router.add", 6, 6),
            ("method", "Router.onError", 7, 7),
            ("function", "Router.match", 9, 9),
            ("function", "listen", 10, 10),
            ("method", "retry", 11, 11),
        ],
    ),
    "api.ts": (
        """
        export interface User { name: string; rename(to: string): void }
        export type Id = string | number;
        enum Colour { Red, Green }
        namespace Web {
          export abstract class Page<T> {
            abstract render(): string;
            title = () => "x";
          }
        }
        export function load(id: Id): User { throw 1; }
        """,
        [
            ("interface", "User", 0, 0),
            ("method", "User.rename", 0, 0),
            ("type", "Id", 1, 1),
            ("enum", "Colour", 2, 2),
            ("namespace", "Web", 3, 8),
            ("class", "Web.Page", 4, 7),
            ("method", "Web.Page.render", 5, 5),
            ("method", "Web.Page.title", 6, 6),
            ("function", "load", 9, 9),
        ],
    ),
    "flow.js": (
        """
        /* @flow strict */
        type Point = {| x: number |};
        export default function flatten(style: ?Point): Point {
          return style;
        }
        """,
        [("type", "Point", 0, 1), ("function", "flatten", 2, 4)],
    ),
    "block.c": (
        """
        int before;
        /* A comment
           without stars.
         */
        int twice(int a) { return 2 * a; }
        """,
        [("function", "twice", 1, 4)],
    ),
    "view.tsx": (
        """
        export const View = ({ name }: Props) => {
          return <b>{name}</b>;
        };
        """,
        [("function", "View", 0, 2)],
    ),
    "server.go": (
        """
        package server

        // Server answers.
        type Server struct {
        \taddr string
        }

        type Handler interface{ Serve() }
        type Names []string

        // Listen waits.
        func (s *Server) Listen() error {
        \treturn nil
        }

        func (l *List[T]) Push(v T) {}

        func New(addr string) *Server { return &Server{addr} }
        """,
        [
            ("struct", "Server", 2, 5),
            ("interface", "Handler", 7, 7),
            ("type", "Names", 8, 8),
            ("method", "Server.Listen", 10, 13),
            ("method", "List.Push", 15, 15),
            ("function", "New", 17, 17),
        ],
    ),
    "lib.rs": (
        """
        /// A queue.
        #[derive(Debug)]
        pub struct Queue<T> { items: Vec<T> }

        impl<T> Queue<T> {
            pub fn push(&mut self, item: T) { self.items.push(item) }
        }

        impl<T> Drop for Queue<T> {
            fn drop(&mut self) {}
        }

        pub trait Shape { fn area(&self) -> f64; }
        enum Side { Left, Right }
        mod tests { fn works() {} }
        macro_rules! square { ($x:expr) => { $x * $x }; }
        """,
        [
            ("struct", "Queue", 0, 2),
            ("impl", "Queue", 4, 6),
            ("method", "Queue.push", 5, 5),
            ("impl", "Queue", 8, 10),
            ("method", "Queue.drop", 9, 9),
            ("trait", "Shape", 12, 12),
            ("method", "Shape.area", 12, 12),
            ("enum", "Side", 13, 13),
            ("module", "tests", 14, 14),
            ("function", "tests.works", 14, 14),
            ("macro", "square", 15, 15),
        ],
    ),
    "Bank.java": (
        """
        package bank;

        /**
         * Accounts.
         */
        public final class Bank implements Closeable {
            private int total;

            public Bank(int total) { this.total = total; }

            @Override
            public void close() throws IOException {
            }

            interface Rate { double of(int years); }
            enum State { OPEN }
            record Entry(int amount) {}
        }
        """,
        [
            ("class", "Bank", 2, 17),
            ("method", "Bank.Bank", 8, 8),
            ("method", "Bank.close", 10, 12),
            ("interface", "Bank.Rate", 14, 14),
            ("method", "Bank.Rate.of", 14, 14),
            ("enum", "Bank.State", 15, 15),
            ("class", "Bank.Entry", 16, 16),
        ],
    ),
    "Main.kt": (
        """
        data class Point(val x: Int) {
            fun moved(by: Int): Point = Point(x + by)
        }
        object Registry { fun all() = listOf(1) }
        fun main() { println("x") }
        """,
        [
            ("class", "Point", 0, 2),
            ("method", "Point.moved", 1, 1),
            ("class", "Registry", 3, 3),
            ("method", "Registry.all", 3, 3),
            ("function", "main", 4, 4),
        ],
    ),
    "list.c": (
        """
        #define MAX(a, b) ((a) > (b) ? (a) : (b))
        struct list { struct list *next; };
        typedef unsigned int u32;
        enum side { LEFT };

        /* Adds. */
        static struct list *list_add(struct list *head, int value)
        {
            return head;
        }
        int (*pick(int which))(int) { return 0; }
        """,
        [
            ("macro", "MAX", 0, 0),
            ("struct", "list", 1, 1),
            ("type", "u32", 2, 2),
            ("enum", "side", 3, 3),
            ("function", "list_add", 5, 9),
            ("function", "pick", 10, 10),
        ],
    ),
    "shape.cpp": (
        """
        namespace geo {
        template <typename T>
        class Shape {
         public:
          virtual ~Shape() {}
          T area() const { return 0; }
          bool operator==(const Shape &other) const { return true; }
        };
        struct Point { int x; };
        }
        int geo::Shape::count(int a) { return a; }
        std::string &name() { return global; }
        """,
        [
            ("namespace", "geo", 0, 9),
            ("class", "geo.Shape", 2, 7),
            ("method", "geo.Shape.~Shape", 4, 4),
            ("method", "geo.Shape.area", 5, 5),
            ("method", "geo.Shape.operator==", 6, 6),
            ("struct", "geo.Point", 8, 8),
            ("function", "geo.Shape.count", 10, 10),
            ("function", "name", 11, 11),
        ],
    ),
    "Service.cs": (
        """
        namespace Shop.Core
        {
            [Serializable]
            public class Service : IService
            {
                public Service() { }
                public int Count { get; set; }
                public async Task<int> Run(int a) { return a; }
            }
            interface IService { }
            struct Money { }
            enum Currency { Euro }
        }
        """,
        [
            ("namespace", "Shop.Core", 0, 12),
            ("class", "Shop.Core.Service", 2, 8),
            ("method", "Shop.Core.Service.Service", 5, 5),
            ("property", "Shop.Core.Service.Count", 6, 6),
            ("method", "Shop.Core.Service.Run", 7, 7),
            ("interface", "Shop.Core.IService", 9, 9),
            ("struct", "Shop.Core.Money", 10, 10),
            ("enum", "Shop.Core.Currency", 11, 11),
        ],
    ),
    "cart.rb": (
        """
        module Shop
          # A cart.
          class Cart < Base
            def self.open(id)
              new(id)
            end

            def total = items.sum
          end
        end
        """,
        [
            ("module", "Shop", 0, 9),
            ("class", "Shop.Cart", 1, 8),
            ("method", "Shop.Cart.open", 3, 5),
            ("method", "Shop.Cart.total", 7, 7),
        ],
    ),
    "Mailer.php": (
        """
        <?php
        interface Sends { public function send($to); }
        class Mailer implements Sends {
            public function send($to) { return true; }
        }
        function helper() { return 1; }
        """,
        [
            ("interface", "Sends", 1, 1),
            ("method", "Sends.send", 1, 1),
            ("class", "Mailer", 2, 4),
            ("method", "Mailer.send", 3, 3),
            ("function", "helper", 5, 5),
        ],
    ),
    "Player.swift": (
        """
        protocol Plays { func play() }
        class Player: Plays {
            init(name: String) {}
            func play() {}
        }
        extension Player { func stop() {} }
        func start() {}
        """,
        [
            ("interface", "Plays", 0, 0),
            ("method", "Plays.play", 0, 0),
            ("class", "Player", 1, 4),
            ("method", "Player.init", 2, 2),
            ("method", "Player.play", 3, 3),
            ("impl", "Player", 5, 5),
            ("method", "Player.stop", 5, 5),
            ("function", "start", 6, 6),
        ],
    ),
    "Tree.scala": (
        """
        trait Shape { def area: Double }
        class Circle(r: Double) extends Shape {
          def area: Double = r * r
        }
        object Main { def main(args: Array[String]): Unit = {} }
        """,
        [
            ("trait", "Shape", 0, 0),
            ("method", "Shape.area", 0, 0),
            ("class", "Circle", 1, 3),
            ("method", "Circle.area", 2, 2),
            ("class", "Main", 4, 4),
            ("method", "Main.main", 4, 4),
        ],
    ),
    "deploy.sh": (
        """
        # Builds.
        build() {
          make
        }
        function push { git push; }
        """,
        [("function", "build", 0, 3), ("function", "push", 4, 4)],
    ),
    "schema.sql": (
        """
        CREATE TABLE shop.users (id INT PRIMARY KEY);
        CREATE VIEW active AS SELECT id FROM users;
        """,
        [("table", "shop.users", 0, 0), ("view", "active", 1, 1)],
    ),
    "ci.yaml": (
        """
        name: build
        jobs:
          test:
            steps:
              - run: make
        """,
        [("key", "jobs", 1, 4), ("key", "jobs.test", 2, 4), ("key", "jobs.test.steps", 3, 4)],
    ),
    "pyproject.toml": (
        """
        [project]
        name = "x"

        [tool.ruff]
        line-length = 120
        """,
        [("key", "project", 0, 2), ("key", "tool.ruff", 3, 4)],
    ),
    "guide.md": (
        """
        ---
        title: Front matter
        ---
        # The `Guide` <a id="x"></a>

        Text.

        ## [Install](install.md)

        ```sh
        # not a heading
        ```

        Use
        ---
        Words.
        """,
        [
            ("section", "The Guide", 3, 15),
            ("section", "The Guide > Install", 7, 12),
            ("section", "The Guide > Use", 13, 15),
        ],
    ),
    "guide.rst": (
        """
        =====
        Guide
        =====

        Install
        -------
        Text.

        Options
        ~~~~~~~
        More.

        Use
        ---
        Words.
        """,
        [
            ("section", "Guide", 1, 14),
            ("section", "Guide > Install", 4, 11),
            ("section", "Guide > Install > Options", 8, 11),
            ("section", "Guide > Use", 12, 14),
        ],
    ),
    "guide.adoc": (
        """
        = Guide
        :toc:

        == Install

        [source,sh]
        ----
        == not a heading
        ----
        [TIP]
        ====
        == in a tip
        ====
        .Listing
        --------
        == in a listing
        --------
        ```
        = nor this
        ```

        Options
        ~~~~~~~

        Text of some length, or a paragraph that ends with
        text
        ----
        == code
        ----
        ````
        = nor this
        ````
        == Use ==
        """,
        [
            ("section", "Guide", 0, 32),
            ("section", "Guide > Install", 3, 31),
            ("section", "Guide > Install > Options", 21, 31),
            ("section", "Guide > Use", 32, 32),
        ],
    ),
    "notes.org": (
        """
        #+TITLE: Notes
        * Tasks
        ** TODO Write *more*
        - * not a heading
        *bold* text
        * Done
        """,
        [("section", "Tasks", 1, 4), ("section", "Tasks > TODO Write more", 2, 4), ("section", "Done", 5, 5)],
    ),
    "page.html": (
        """
        <h1 class="a">The <b>guide</b></h1>
        <p>Text</p>
        <h2>Install &amp; run</h2>
        <p>More</p>
        """,
        [("section", "The guide", 0, 3), ("section", "The guide > Install & run", 2, 3)],
    ),
    "thing.lua": (
        """
        local function add(a, b)
          return a + b
        end
        print(add(1, 2))
        """,
        [("function", "add", 0, 2)],
    ),
    "Lease.hs": (
        """
        {-# LANGUAGE CPP #-}
        {- |
        this module
        where leases live
        -}
        module Lease
          ( Lease (..)
          , renew
          ) where

        import Data.Text (Text)

        -- | A lease.
        data Lease
          = Free
          | Held
              { holder :: !Text
              , since, until :: Int
              }
          deriving (Eq)

        newtype (Show a) => Box a = Box { unBox :: a }
        type Name = Text

        class (Monad m) => Store m where
          load :: Name -> m Lease
          load _ = pure Free

        instance (ToJSON a, Show a) => ToJSON (Box a) where
          toJSON (Box a) = toJSON a
          toJSON other = helper
            where
              helper = 1

        -- | Renews it.
        renew, renewed
          :: Lease
          -> Lease
        #if DEBUG
        renew Free = Free
        #endif
        renew held
          | isOld = Free
          | otherwise = go held
          where
            isOld = since held < 3
            go :: Lease -> Lease
            go each = each

        (<+>) :: Int -> Int -> Int
        a <+> b = a + b

        deriveJSON options ''Lease
        main = do
          let x = 1
          print x
        """,
        [
            ("module", "Lease", 5, 8),
            ("type", "Lease", 12, 19),
            ("struct", "Lease.Free", 14, 14),
            ("struct", "Lease.Held", 15, 18),
            ("property", "Lease.Held.holder", 16, 16),
            ("property", "Lease.Held.since", 17, 18),
            ("type", "Box", 21, 21),
            ("type", "Name", 22, 22),
            ("class", "Store", 24, 26),
            ("method", "Store.load", 25, 26),
            ("impl", "ToJSON.Box", 28, 32),
            ("method", "ToJSON.Box.toJSON", 29, 32),
            ("function", "ToJSON.Box.toJSON.helper", 32, 32),
            ("function", "renew", 34, 47),
            ("function", "renew.isOld", 45, 45),
            ("function", "renew.go", 46, 47),
            ("function", "<+>", 49, 50),
            ("function", "main", 53, 55),
        ],
    ),
    "Bird.lhs": (
        """
        > module Bird where

        The text of a story, as it is told.

        > fly :: Int -> Int
        > fly height = up
        >   where up = height + 1
        """,
        [("module", "Bird", 0, 0), ("function", "fly", 4, 6), ("function", "fly.up", 6, 6)],
    ),
    "Tex.lhs": (
        """
        the function below
        \\begin{code}
        land :: Int
        land = 0
        \\end{code}
        land is safe
        """,
        [("function", "land", 2, 3)],
    ),
    "lease.ml": (
        """
        (** A lease. *)
        type 'a t = { holder : 'a; since : int }
        and name = string
        exception Lost of string

        module type STORE = sig
          val load : name -> int t
        end

        module Memory : STORE = struct
          let rec load name =
            let found = find name in
            found
          and find _ = raise (Lost "x")
        end

        let ( >>= ) x f = f x
        let () = print_endline "x"
        """,
        [
            ("type", "t", 0, 1),
            ("type", "name", 2, 2),
            ("type", "Lost", 3, 3),
            ("interface", "STORE", 5, 7),
            ("method", "STORE.load", 6, 6),
            ("module", "Memory", 9, 14),
            ("function", "Memory.load", 10, 12),
            ("function", "Memory.find", 13, 13),
            ("function", ">>=", 16, 16),
        ],
    ),
    "lease.dart": (
        """
        /// A lease.
        sealed class Lease<T> extends Base {
          final int since = now(3);
          Lease({
            required this.holder,
          }) : super(key: 1);
          factory Lease.free() => Lease(holder: null);
          int get age => now() - since;
          @override
          Future<Map<String, T>> renew(
            int seconds, {
            bool wait = false,
          }) async {
            if (wait) {
              check(seconds);
            }
          }
          bool operator ==(Object other) => true;
        }

        mixin Timed on Lease {}
        extension Ages on int {
          bool isOld() => this > 3;
        }
        typedef Check = bool Function(int age);
        enum State { free, held }
        void main() {
          print('x');
        }
        """,
        [
            ("class", "Lease", 0, 18),
            ("method", "Lease.Lease", 3, 5),
            ("method", "Lease.Lease.free", 6, 6),
            ("method", "Lease.age", 7, 7),
            ("method", "Lease.renew", 8, 16),
            ("method", "Lease.operator.==", 17, 17),
            ("trait", "Timed", 20, 20),
            ("impl", "Ages", 21, 23),
            ("method", "Ages.isOld", 22, 22),
            ("type", "Check", 24, 24),
            ("enum", "State", 25, 25),
            ("function", "main", 26, 28),
        ],
    ),
    "lease.jl": (
        """
        module Leases
        abstract type Held end

        \"""
            Lease(holder)
        \"""
        mutable struct Lease{T} <: Held
            holder::T
            Lease(x) = new(x)
        end

        @inline function Base.show(io::IO, x::Lease)
            found = map(x) do each
                each
            end
        end
        age(x::Lease; unit=1) where {T} = now() - x.since
        Base.:+(a::Lease, b::Lease) = a
        macro check(x) x end
        total = sum(xs)
        end
        """,
        [
            ("module", "Leases", 0, 0),
            ("type", "Held", 1, 1),
            ("struct", "Lease", 3, 9),
            ("method", "Lease.Lease", 8, 8),
            ("function", "Base.show", 11, 15),
            ("function", "age", 16, 16),
            ("function", "Base.:+", 17, 17),
            ("macro", "check", 18, 18),
        ],
    ),
    "lease.R": (
        """
        #' Renews it.
        #' @export
        renew <- function(lease, seconds = 3) {
          check <- function(x) x > 0
          total <- sum(lease)
        }
        print.lease = function(x, ...) invisible(x)
        `age<-` <- \\(x, value) x
        setGeneric("held", function(x) standardGeneric("held"))
        Lease <- R6::R6Class("Lease",
          public = list(
            take = function() {
              1
            }
          )
        )
        """,
        [
            ("function", "renew", 0, 5),
            ("function", "renew.check", 3, 3),
            ("function", "print.lease", 6, 6),
            ("function", "age<-", 7, 7),
            ("function", "held", 8, 8),
            ("class", "Lease", 9, 15),
            ("method", "Lease.take", 11, 13),
        ],
    ),
    "lease.clj": (
        """
        (ns app.lease
          (:require [clojure.string :as str]))

        (defprotocol Store
          (load! [this name] "Loads it."))
        (defrecord Memory [entries]
          Store
          (load! [_ name] (get entries name)))
        ; Old.
        (defn ^:private old?
          "Whether it is old."
          [lease]
          (let [age 1] (> age 3)))
        (defmethod age :held [lease] 1)
        (def ^{:doc "x"} limit 3)
        (s/def ::name string?)
        """,
        [
            ("module", "app.lease", 0, 1),
            ("interface", "Store", 3, 4),
            ("method", "Store.load!", 4, 4),
            ("struct", "Memory", 5, 7),
            ("method", "Memory.load!", 7, 7),
            ("function", "old?", 8, 12),
            ("function", "age", 13, 13),
            ("function", "limit", 14, 14),
            ("function", "::name", 15, 15),
        ],
    ),
    "lease.erl": (
        """
        -module(lease).
        -export([renew/1]).
        -record(lease, {holder, since = 0}).
        -define(LIMIT, 3).
        -type name() :: binary().

        %% Renews it.
        -spec renew(name()) -> ok.
        renew(free) ->
            ok;
        renew(#lease{since = Since}) when Since > ?LIMIT ->
            check(Since),
            ok.

        check(_) -> true.
        """,
        [
            ("module", "lease", 0, 0),
            ("struct", "lease", 2, 2),
            ("macro", "LIMIT", 3, 3),
            ("type", "name", 4, 4),
            ("function", "renew", 6, 12),
            ("function", "check", 14, 14),
        ],
    ),
    "lease.proto": (
        """
        // A lease.
        message Lease {
          message Holder { string name = 1; }
          enum State { FREE = 0; }
        }
        service Leases {
          rpc Renew(Lease) returns (Lease);
        }
        """,
        [
            ("struct", "Lease", 0, 4),
            ("struct", "Lease.Holder", 2, 2),
            ("enum", "Lease.State", 3, 3),
            ("interface", "Leases", 5, 7),
            ("method", "Leases.Renew", 6, 6),
        ],
    ),
    "thing.zig": (
        """
        pub fn renew(
            self: *Lease,
        ) !void {
            const age = 1;
        }
        """,
        [("function", "renew", 0, 4)],
    ),
    "main.tf": (
        """
        # The size of a node.
        variable "size" {
          default = "small"
        }

        resource "aws_instance" "node" {
          count = 2
        }
        output "id" { value = aws_instance.node[0].id }
        data "aws_ami" "newest" {}
        module "network" {
          source = "./network"
        }
        """,
        [
            ("property", "var.size", 0, 3),
            ("type", "aws_instance.node", 5, 7),
            ("property", "output.id", 8, 8),
            ("type", "data.aws_ami.newest", 9, 9),
            ("module", "module.network", 10, 12),
        ],
    ),
}


@pytest.mark.parametrize("name", CODE)
def test_the_definitions_of_each_language(name: str) -> None:
    text, expected = CODE[name]
    found = definitions(name, dedent(text).removeprefix("\n"))
    assert [(each.kind, each.name, each.first, each.last) for each in found] == expected


def test_every_grammar_is_tried() -> None:
    tried = {BY_EXTENSION[name.rsplit(".")[-1]] for name in CODE if name.rsplit(".")[-1] in BY_EXTENSION}
    assert tried == set(BY_EXTENSION.values())
    assert {name.rsplit(".")[-1].lower() for name in CODE} >= _SYNTAXES.keys() - {"mli", "cljs", "cljc", "hrl"}
    assert {name.rsplit(".")[-1] for name in CODE} >= {"adoc", "html", "md", "org", "rst"} <= HEADINGS.keys()
    for grammar in tried:
        loaded(grammar)


def test_real_modules_have_the_definitions_of_their_syntax_trees() -> None:
    import ast

    package = Path(driftline.__file__).parent
    for path in sorted((package / "storage").rglob("*.py")):
        text = path.read_text("utf-8")
        nodes = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
        expected = sorted((node.lineno - 1, (node.end_lineno or 0) - 1, node.name) for node in nodes)
        found = definitions(str(path), text)
        assert sorted((each.line, each.last, each.name.rsplit(".")[-1]) for each in found) == expected, path


@pytest.mark.parametrize("extension", sorted([*BY_EXTENSION, *_SYNTAXES]))
def test_unparsable_code_does_no_harm(extension: str) -> None:
    for text in ("", "\n", "\x0c{{{((([[[", "def class func fn <?php %% \ufffd é 漢字\n" * 50, "(" * 3_000, '"' * 999):
        lines = text.count("\n") + 1
        for each in definitions(f"x.{extension}", text):
            assert 0 <= each.first <= each.line <= each.last < lines


@given(
    st.sampled_from(sorted([*BY_EXTENSION, *_SYNTAXES, *HEADINGS, "lua"])),
    st.text(st.sampled_from("a ={}()[]:\n\t#-*<>h1'\"/")),
)
def test_definitions_are_nested_within_their_document(extension: str, text: str) -> None:
    around: list[Definition] = []
    for each in definitions(f"x.{extension}", text):
        assert 0 <= each.first <= each.last <= text.count("\n")
        assert each.kind in KINDS
        while around and around[-1].last < each.first:
            around.pop()
        assert all(outer.first <= each.first and each.last <= outer.last for outer in around)
        around.append(each)


def test_a_lone_carriage_return_ends_a_line() -> None:
    assert [each.line for each in definitions("a.py", "x = 1\rdef f():\r    pass\r")] == [1]


def test_generated_code_is_left_to_patterns() -> None:
    text = "def f():\n    pass\n" + "x = 1\n" * (MAX_PARSED_CHARACTERS // 6 + 1)
    assert [(each.name, each.last) for each in definitions("a.py", text)] == [("f", 1)]


@pytest.mark.parametrize(
    ("path", "line", "names"),
    [
        ("a.ts", "interface I { a(): void; b(): void; c(): void }", ["I", "I.a", "I.b", "I.c"]),
        ("A.java", "class C { int a() { return 1; } int b() { return 2; } }", ["C", "C.a", "C.b"]),
        ("a.py", "class C: a = lambda: 1\ndef f(): pass", ["C", "f"]),
        ("a.rb", "class C; def a; end; def b; end; end", ["C", "C.a", "C.b"]),
        ("a.sh", "one() { :; }; two() { :; }", ["one", "two"]),
        ("deploy", "#!/usr/bin/env -S python3 -u\ndef run(): pass", ["run"]),
        ("bin/tool", "#!/bin/bash -e\none() { :; }", ["one"]),
        ("a.js", "class A { x() {} } class B { x() {} y() {} }", ["A", "A.x", "B", "B.x", "B.y"]),
    ],
)
def test_definitions_of_short_documents(path: str, line: str, names: list[str]) -> None:
    assert [each.name for each in definitions(path, line + "\n")] == names


def test_outlines_survive_their_encoding() -> None:
    found = definitions("store.py", dedent(CODE["store.py"][0]))
    assert decode(encode(found)) == tuple(found)
    assert decode("") == ()
    assert [getattr(innermost(found, line), "name", None) for line in (0, 5, 8)] == [
        None, "SessionStore", "SessionStore.load.decode",
    ]  # fmt: skip


def test_a_deeply_nested_document_is_parsed() -> None:
    depth = sys.getrecursionlimit() // 4
    text = "".join(f"{' ' * level}def f{level}():\n" for level in range(depth)) + " " * depth + "pass\n"
    found = definitions("deep.py", text)
    assert max(len(each.name) for each in found) <= 160


@pytest.mark.parametrize(
    "line",
    [
        "def f(x):",
        "    async def run(self) -> None:",
        "class A(B):",
        "export default function main() {",
        "pub(crate) fn new() -> Self {",
        "public static final class X {",
        "type Alias = int",
        "impl Trait for X {",
        "\tfunc main() {",
        "  def fetch!(id) when is_integer(id) do",
        "  def name, do: :x",
        "defmacro from(expr) do",
        "defimpl Enumerable, for: Lease do",
    ],
)
def test_lines_that_begin_a_definition_are_recognized(line: str) -> None:
    assert begins_definition(line)
    assert [each.line for each in by_patterns(f"x = 1\n{line}\n")] == [1]


def test_the_text_above_a_definition_of_elixir_belongs_to_it() -> None:
    text = """
        defmodule Lease do
          @doc \"\"\"
          Renews it.
          \"\"\"
          @spec renew!(t) :: t
          def renew!(lease), do: lease

          # Old.
          def held?(lease) do
            true
          end
        end
    """
    found = by_patterns(dedent(text).strip())
    assert [(each.name, each.first, each.last) for each in found] == [
        ("Lease", 0, 11), ("Lease.renew!", 1, 5), ("Lease.held?", 7, 10),
    ]  # fmt: skip


@pytest.mark.parametrize("before", ["-- {- as text", 'open = "{-"', 'quote = \'"\'; open = "\\"{-"', "{- a -} x = 1"])
def test_comment_signs_in_haskell_text_do_not_hide_definitions(before: str) -> None:
    found = by_patterns(f"{before}\nf x = x\n{{- g y = y\n-}}\nh = 1\n", "hs")
    assert [(each.name, each.line, each.last) for each in found if each.line] == [("f", 1, 1), ("h", 4, 4)]


def test_a_name_that_starts_with_end_does_not_end_the_definition_before() -> None:
    text = "f <- function(x) x\nendpoints <- function(y) {\n  y\n}\ng <- function(x) x\nending <- function(x) x\n"
    found = [(each.name, each.line, each.last) for each in by_patterns(text, "r")]
    assert found == [("f", 0, 0), ("endpoints", 1, 3), ("g", 4, 4), ("ending", 5, 5)]


def test_only_adjacent_clauses_are_one_definition() -> None:
    clauses = "f :: Int\n-- one\n{-# INLINE f #-}\nf 1 = 2\n\nf x = x\n"
    assert [(each.name, each.line, each.last) for each in by_patterns(clauses, "hs")] == [("f", 0, 5)]
    apart = "function f(x) {\n  a\n}\nregister(f)\nfunction f(x) {\n  b\n}\n"
    assert [(each.name, each.line, each.last) for each in by_patterns(apart)] == [("f", 0, 2), ("f", 4, 6)]


def test_a_module_of_tests_is_a_test_and_a_function_of_that_name_is_not() -> None:
    named = [("module", "tests"), ("function", "tests.renews"), ("method", "Rule.test"), ("section", "tests.x")]
    found = [Definition(kind, name, 0, 0, 1).is_test for kind, name in named]
    assert found == [True, True, False, False]


@pytest.mark.parametrize(
    "line", ["define(x)", "x = def_value", "return function(x)", "# def f(x):", "classes = []", "", "class", "def"]
)
def test_other_lines_do_not_begin_a_definition(line: str) -> None:
    assert not begins_definition(line)
    assert [each.line for each in by_patterns(f"{line}\ndef f():")] == [1]
