"""Write a prepared log with Spark: spark-submit prepare_with_spark.py LOG OUT PARTS.

LOG is Parquet with the columns user, item and time. A pair that occurs several times keeps its
latest time, as in `fewfold prepare`.
"""

import glob
import os
import shutil
import sys

from pyspark.sql import Column, SparkSession, Window
from pyspark.sql import functions as F

from fewfold.recommender import seal


def part_of(user: str, text: bool, parts: int) -> Column:
    """Return the part of each user id, by the rule of the prepared format."""
    if text:
        return (F.crc32(F.col(user)) % parts).cast("int")
    number = F.col(user).cast("long")
    folded = number.bitwiseXOR(F.shiftright(number, 32)).bitwiseAND(F.lit(0x7FFFFFFF))
    return (F.shiftright(folded * F.lit(2_654_435_761), 30) % parts).cast("int")


def main(log: str, out: str, parts: int) -> None:
    """Merge, number and group the rows of a log, and complete the folder."""
    spark = SparkSession.builder.getOrCreate()
    rows = spark.read.parquet(log).select("user", "item", "time")
    pairs = rows.groupBy("user", "item").agg(F.max("time").alias("time")).cache()
    number = (F.row_number().over(Window.orderBy("item")) - 1).cast("int")
    items = pairs.groupBy("item").agg(F.count("*").alias("users")).withColumn("number", number)
    items = items.cache()
    history = F.sort_array(F.collect_list(F.struct("number", "time"))).alias("history")
    text = dict(rows.dtypes)["user"] == "string"
    users = (
        pairs.join(F.broadcast(items), "item")
        .groupBy("user")
        .agg(history)
        .select(
            "user",
            F.col("history.number").alias("items"),
            F.col("history.time").alias("times"),
            part_of("user", text, parts).alias("part"),
        )
    )
    users.repartition(parts, "part").sortWithinPartitions("part", "user").write.partitionBy(
        "part"
    ).parquet(f"{out}/spark/parts")
    items.orderBy("number").select("item", "users").coalesce(1).write.parquet(f"{out}/spark/items")
    for file in glob.glob(f"{out}/spark/parts/part=*/*.parquet"):
        part = int(os.path.basename(os.path.dirname(file)).removeprefix("part="))
        os.rename(file, f"{out}/part-{part:05}.parquet")
    (file,) = glob.glob(f"{out}/spark/items/*.parquet")
    os.rename(file, f"{out}/items.parquet")
    shutil.rmtree(f"{out}/spark")
    print(seal(out, parts=parts, rows=rows.count()).summary)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
