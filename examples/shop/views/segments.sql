-- A Reload's view has no block(): it reads its tables whole.
SELECT segment, count(*) AS orders, sum(amount) AS revenue, sum(margin) AS margin
FROM fact.margins
GROUP BY segment
