"""The pages and the JSON API of `tammes serve`: search a gallery by images, browse it, see its map.

server       the server process
app          the ASGI application: api and pages behind the middleware
middleware   host, token, rate, size and time of every request; the headers of every answer
api          JSON (models: its schemas)      pages    HTML (templates/, static/)
state        shared state of the handlers    reports  the reports of runs
gallery      the served gallery, reloaded when it changes; embeds uploads
rows         its items in memory, by id
decoding     decodes uploads in separate processes (decoder) with limits on memory and time
limits       limits on requests              connections  limits on connections
"""
