-- The tills call the position sold_ms and receipt; here they get the names that fact.sales has.
SELECT sold_ms AS pos, receipt AS id, product_id, amount, till AS place
FROM stage.store
WHERE block(sold_ms, receipt)
