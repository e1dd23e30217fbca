-- block() is true for the rows of the block at hand. The view gives their pos and id on unchanged:
-- that is how the next table knows its own place.
SELECT o.pos, o.id, o.customer_id, c.segment, o.product_id, o.quantity, o.amount
FROM stage.orders o
LEFT JOIN stage.customers c ON c.customer_id = o.customer_id
WHERE block(o.pos, o.id)
