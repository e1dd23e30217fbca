-- Both views of fact.sales give the same columns.
SELECT pos, id, product_id, CAST(cents / 100 AS DECIMAL(12, 2)) AS amount, country AS place
FROM stage.web
WHERE block(pos, id)
