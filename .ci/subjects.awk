# Prints each commit subject that is not `area: imperative summary` of at most 72 characters, and fails if there is one.
# A merge is `merge: summary`; only the subjects that `git revert` writes are exempt.
/^Revert "/ { next }
length($0) > 72 || !/^[a-z][a-z0-9_.\/-]*: [a-z]/ { print "not `area: summary` in 72 characters: " $0; bad = 1 }
END { exit bad }
