"""git as the tests call it: committing as somebody, whatever the settings of who runs them."""

SETTINGS = ("user.name=t", "user.email=t@example.org", "commit.gpgsign=false", "init.defaultBranch=main")
GIT = ("git", *(word for setting in SETTINGS for word in ("-c", setting)))
