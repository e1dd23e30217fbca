-- A Step's view reads its base table through block(), and gives that row's pos and id on.
SELECT o.pos, o.id, o.order_id, o.customer_id, c.segment, o.amount
FROM stage.orders o
LEFT JOIN stage.customers c ON c.customer_id = o.customer_id
WHERE block(o.pos, o.id)
  AND o.amount >= :smallest_order
