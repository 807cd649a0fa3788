# %% [markdown]
# # Orders of a backup
# Which customers have ordered for how much, by JetStream's own messages.

# %%
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import jsbackup

backup = jsbackup.open("backups").latest()
{name: backup[name].message_count for name in backup}

# %%
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.memory", "1g")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

messages = backup.spark(spark)
messages.groupBy("stream").count().orderBy("stream").show()

# %%
schema = "order BIGINT, amount DECIMAL(12, 2), customer STRING, lines ARRAY<STRUCT<sku: STRING, n: INT>>"
orders = backup["ORDERS"].spark(spark).withColumn("payload", F.from_json(F.col("data").cast("string"), schema))
orders.createOrReplaceTempView("orders")
spark.sql("""
    SELECT payload.customer, count(*) AS orders, sum(payload.amount) AS amount
    FROM orders WHERE payload.customer IS NOT NULL GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT 3
""").show()

# %%
spark.sql("SELECT line.sku, sum(line.n) AS n FROM orders LATERAL VIEW explode(payload.lines) AS line GROUP BY 1").show()

# %%
settings = backup["KV_settings"].spark(spark, columns=["sequence", "subject"])
settings.printSchema()
settings.orderBy("sequence").show()

# %%
spark.stop()
