-- :payment_fee is in tidegate.toml, below [vars].
SELECT o.pos, o.id, o.segment, o.amount,
       CAST(o.amount - o.quantity * p.cost - o.amount * :payment_fee AS DECIMAL(12, 2)) AS margin
FROM fact.orders o
JOIN stage.products p ON p.product_id = o.product_id
WHERE block(o.pos, o.id)
