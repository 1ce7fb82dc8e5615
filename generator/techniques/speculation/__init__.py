"""Whether tokens are proposed before the model is asked, so that one pass may give several."""

ORDER = 83
