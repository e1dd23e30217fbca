-- Grouping the rows of a block alone would be wrong for an hour that spans two blocks. So block()
-- only picks the hours that got new rows, and upto() reads those hours whole, up to the block's end.
-- The position of an hour is that of its newest row.
SELECT max(struct(pos, id)).pos AS pos,
       max(struct(pos, id)).id AS id,
       timestamp_millis(pos DIV 3600000 * 3600000) AS hour,
       count(*) AS orders,
       sum(amount) AS revenue
FROM fact.orders
WHERE upto(pos, id)
  AND pos DIV 3600000 IN (SELECT pos DIV 3600000 FROM fact.orders WHERE block(pos, id))
GROUP BY pos DIV 3600000
