-- A Reload's view reads its tables whole.
SELECT coalesce(segment, 'unknown') AS segment, count(*) AS orders, sum(amount) AS revenue
FROM fact.orders
GROUP BY coalesce(segment, 'unknown')
