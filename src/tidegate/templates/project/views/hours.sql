-- An hour may get rows from several blocks. So block() only picks the hours to compute anew, and
-- upto() reads all of their rows. The position is that of the newest row.
SELECT max(struct(pos, id)).pos AS pos,
       max(struct(pos, id)).id AS id,
       pos DIV 3600000 AS hour,
       count(*) AS orders,
       sum(amount) AS revenue
FROM fact.orders
WHERE upto(pos, id)
  AND pos DIV 3600000 IN (SELECT pos DIV 3600000 FROM fact.orders WHERE block(pos, id))
GROUP BY pos DIV 3600000
