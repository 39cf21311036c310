"""The page and the JSON API of `tammes serve`: search a gallery by pictures, browse it, wander in its map.

server      from a site to a process that listens, and stops when it is told to
app         the site's routes behind its guard
guard       what every request passes: host, token, number, size, time; and what every answer carries
api         JSON          pages    HTML          reports  the reports of runs
site        what the handlers share              gallery  what is served of a gallery, renewed as it changes
catalogue   every item of a gallery in memory: ids, classes, vectors
decoding    uploads become pixels in processes of their own, which may use so much memory and time and no more
embedding   pixels become vectors, several uploads at a time
"""
