"""`perfgen estimate`: explicit configurations, one a row of a table, costed without deciding."""
